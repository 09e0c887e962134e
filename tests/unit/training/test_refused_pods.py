"""What a Job controller's events say of refused pods, and for how long that is borne."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_gpu_provider.cluster.api.informer import Change
from airflow_gpu_provider.cluster.api.watched import job_events, pod_events
from airflow_gpu_provider.errors import (
    AdmissionDenied,
    ClusterUnreachable,
    ObjectRejected,
    PermissionDenied,
    ReferenceNotFound,
    ResourceQuotaExceeded,
)
from airflow_gpu_provider.training.wait.start_advice import AT_LEAST, RefusedPods
from tests.unit.training.test_pod_end import START, stamp

EVENTS = job_events("ml")
BY_QUOTA = (
    'pods "train-0-x" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, used: 1, limited: 1'
)
BY_POLICY = 'pods "train-0-x" is forbidden: violates PodSecurity "restricted:latest": privileged'
INVALID = 'Pod "train-0-x" is invalid: spec.containers[0].image: Required value'


def event(message: str, *, job: str = "train", at: float = 10, reason: str = "FailedCreate") -> Change:
    raw: dict[str, Any] = {
        "metadata": {"uid": f"{job}-{at}", "creationTimestamp": stamp(at)},
        "involvedObject": {"kind": "Job", "name": job},
        "reason": reason,
        "message": f"Error creating: {message}",
        "lastTimestamp": stamp(at),
    }
    return Change(resource=EVENTS, kind="present", raw=raw)


def refused(*changes: Change) -> RefusedPods:
    found = RefusedPods(EVENTS, lambda name: name == "train")
    found.take(changes)
    return found


@pytest.mark.parametrize(
    ("message", "error"), [(BY_QUOTA, ResourceQuotaExceeded), (BY_POLICY, AdmissionDenied), (INVALID, ObjectRejected)]
)
def test_refusal_has_the_type_that_it_has_for_a_single_pod(message: str, error: type[Exception]) -> None:
    now = refused(event(message)).now()
    assert now is not None
    assert type(now.error) is error
    assert "the API server refuses its pods: " in now.in_words


POST = 'failed to call webhook: Post "https://w.kueue-system.svc:443/mutate--v1-pod?timeout=10s"'


@pytest.mark.parametrize(
    "message",
    [
        f'Internal error occurred: failed calling webhook "mpod.kb.io": {POST}: context deadline exceeded',
        f'Internal error occurred: failed calling webhook "mpod.kb.io": {POST}: x509: certificate has expired',
        f'Internal error occurred: failed calling webhook "mpod.kb.io": {POST}: "x" is forbidden: no',
        "Internal error occurred: resource quota evaluation timed out",
        'Operation cannot be fulfilled on resourcequotas "gke-resource-quotas": the object has been modified; please'
        " apply your changes to the latest version and try again",
        'pods "train-0-x" is forbidden: not yet ready to handle request',
        'pods "train-0-x" is forbidden: error looking up service account ml/train: etcdserver: leader changed',
        "etcdserver: request timed out",
        "the server is currently unable to handle the request",
        "Too many requests, please try again later.",
        'Post "https://10.0.0.1:443/api/v1/namespaces/ml/pods": dial tcp 10.0.0.1:443: connect: connection refused',
        "context deadline exceeded",
        "Unauthorized",
        "Timeout: request did not complete within requested timeout - context deadline exceeded",
    ],
)
def test_what_decides_nothing_is_borne_as_long_as_a_node_is_waited_for(message: str) -> None:
    now = refused(event(message, at=10)).now()
    assert now is not None
    assert type(now.error) is ClusterUnreachable
    assert "(0)" not in str(now.error)
    assert now.ends_at(1800) == START + timedelta(seconds=1810)


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ('pods is forbidden: User "a" cannot create resource "pods" in API group "" in the namespace "ml"',
         PermissionDenied),
        ('admission webhook "v.kyverno.svc" denied the request: Pod "train" is invalid: no label', AdmissionDenied),
        ("pods \"x\" is forbidden: ValidatingAdmissionPolicy 'a' with binding 'b' denied request: no", AdmissionDenied),
        ('namespaces "ml" not found', ReferenceNotFound),
        ('pods "x" is forbidden: error looking up service account ml/a: serviceaccount "a" not found',
         ReferenceNotFound),
        ("etcdserver: request is too large", ObjectRejected),
        ('Pod in version "v1" cannot be handled as a Pod: json: cannot unmarshal number', ObjectRejected),
    ],
)  # fmt: skip
def test_only_the_words_of_a_refusal_make_it_one(message: str, error: type[Exception]) -> None:
    now = refused(event(message)).now()
    assert now is not None
    assert type(now.error) is error


def test_events_of_others_and_other_reasons_say_nothing_and_what_is_not_of_jobs_is_handed_on() -> None:
    other = Change(resource=pod_events("ml"), kind="synced", raw={})
    view = RefusedPods(EVENTS, lambda name: name == "train")
    assert view.take([event(BY_QUOTA, job="other"), event(BY_QUOTA, reason="SuccessfulCreate"), other]) == [other]
    assert view.now() is None


def test_quota_is_waited_for_as_long_as_a_node_and_a_policy_for_its_own_patience() -> None:
    quota, policy = (refused(event(message, at=10), event(message, at=60)).now() for message in (BY_QUOTA, BY_POLICY))
    assert quota is not None
    assert policy is not None
    assert quota.ends_at(1800) == START + timedelta(seconds=1810)
    assert policy.ends_at(1800) == START + timedelta(seconds=10) + AT_LEAST
    assert policy.ends_at(5) == START + timedelta(seconds=15)
    assert quota.error_at(START + timedelta(seconds=1809), 1800) is None
    assert quota.error_at(START + timedelta(seconds=1810), 1800) is quota.error


def test_what_the_pods_name_and_does_not_exist_ends_it_at_once() -> None:
    now = refused(event('pods "train-0-x" is forbidden: no PriorityClass with name night was found', at=10)).now()
    assert now is not None
    assert type(now.error) is ReferenceNotFound
    assert now.error_at(START + timedelta(seconds=10), 1800) is now.error


def test_what_was_refused_is_forgotten_once_all_pods_are_there() -> None:
    view = refused(event(BY_QUOTA))
    view.forget()
    assert view.now() is None
