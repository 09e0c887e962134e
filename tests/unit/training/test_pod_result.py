"""A pod's result: JSON, an error that shows what it is instead, or lost with its pod."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.providers.cncf.kubernetes.utils.pod_manager import XComRetrievalError
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.client import ApiException

from airflow_gpu_provider.cluster.model.pod_state import PodState
from airflow_gpu_provider.errors import GpuError, PodPreempted, PodResultInvalid, PodResultLost
from airflow_gpu_provider.training.life import collect
from airflow_gpu_provider.training.life.collect import ResultUnread, parsed, unread
from airflow_gpu_provider.training.life.hook import PoolHook
from airflow_gpu_provider.untrusted import storable
from tests.unit.training.test_pod_end import disrupted, ended, pod, running, waiting
from tests.unit.training.test_pod_verdict import watched

NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"))
JSON = st.recursive(st.none() | st.booleans() | NUMBERS | TEXTS, lambda inner: st.lists(inner, max_size=3))
SIDECAR = running("airflow-xcom-sidecar")
PULLS = waiting("ImagePullBackOff", 'Back-off pulling image "alpine"', name="airflow-xcom-sidecar")


@given(JSON)
def test_json_is_read(value: Any) -> None:
    assert parsed(json.dumps(value), pod="train-x") == storable(value)


UNSTORABLE = pytest.mark.parametrize(
    "text", ['{"loss": NaN}', '{"a": 1e999}', '{"a": "\\u0000"}', '"\\ud800"', "1" * 5000, "9" * 30, "[" * 8000]
)


@UNSTORABLE
def test_what_airflow_cannot_store_is_no_result(text: str) -> None:
    with pytest.raises(PodResultInvalid, match="cannot be stored by Airflow"):
        parsed(text, pod="train-x")


@UNSTORABLE
def test_nor_where_an_operator_reads_it_by_itself(text: str) -> None:
    """KubernetesPodOperator.extract_xcom is for subclasses to override."""
    pod = {"metadata": {"name": "train-x"}, "spec": {"containers": [{"name": "base"}]}}
    with pytest.raises(PodResultInvalid, match="cannot be stored by Airflow"):
        collect._extracted(pod, cast(PoolHook, None), lambda _: json.loads(text), succeeded=True)


def test_a_nul_behind_a_result_is_no_json() -> None:
    with pytest.raises(PodResultInvalid, match="not valid JSON"):
        parsed('{"a": 1}\0', pod="train-x")


@pytest.mark.parametrize("text", ["", "\n", "__airflow_xcom_result_empty__\n"])
def test_empty_result(text: str) -> None:
    assert parsed(text, pod="train-x") is None


@given(st.text(max_size=2000))
def test_anything_else_is_shown_in_part(rest: str) -> None:
    text = "{" + rest + "!"
    with pytest.raises(PodResultInvalid) as error:
        parsed(text, pod="train-x")
    assert "/airflow/xcom/return.json" in str(error.value)
    assert repr(text[:100]) in str(error.value)
    assert len(error.value.what) < 1500


@pytest.mark.parametrize("succeeded", [True, False])
def test_only_a_pod_that_has_succeeded_is_said_to_have(succeeded: bool) -> None:
    with pytest.raises(PodResultInvalid) as error:
        parsed("{", pod="train-x", succeeded=succeeded)
    assert ("succeeded" in str(error.value)) is succeeded
    assert "/airflow/xcom/return.json" in str(error.value)


@pytest.mark.parametrize(
    ("state", "node_is_there", "error_type"),
    [
        (None, True, PodPreempted),
        (pod(ended(0), SIDECAR), False, PodPreempted),
        (pod(ended(0), SIDECAR, deleted_at=70), True, PodPreempted),
        (pod(ended(0), SIDECAR, conditions=(disrupted(at=70),)), True, PodPreempted),
        (pod(ended(0), ended(143, name="airflow-xcom-sidecar"), phase="Failed"), True, PodPreempted),
        (pod(ended(0), SIDECAR), True, ResultUnread),
        (pod(ended(0)), True, ResultUnread),
    ],
)
def test_result_that_cannot_be_read_is_lost_or_asked_for_again(
    state: PodState | None, node_is_there: bool, error_type: type[Exception]
) -> None:
    cause = ConnectionResetError("Connection reset by peer")
    assert type(unread(state, cause, pod="train-x", node_is_there=node_is_there)) is error_type


OUT_OF_MEMORY = ended(137, name="airflow-xcom-sidecar", reason="OOMKilled")
NO_SHELL = ended(128, name="airflow-xcom-sidecar", reason="StartError", message='exec: "sh": not found')


@pytest.mark.parametrize(
    ("sidecar", "says"),
    [
        (OUT_OF_MEMORY, "went over its memory limit"),
        (OUT_OF_MEMORY, "Raise the memory limit in xcom_sidecar_container_resources"),
        (NO_SHELL, 'ended with exit code 128 (StartError: exec: "sh": not found)'),
        (ended(1, name="airflow-xcom-sidecar"), "ended with exit code 1."),
    ],
)
def test_a_result_whose_own_container_died_is_lost_and_nothing_is_trained_again(
    sidecar: dict[str, Any], says: str
) -> None:
    state = pod(ended(0), sidecar, phase="Failed")
    cluster: Any = SimpleNamespace(pods=SimpleNamespace(state=lambda _: state), api=None)
    raw = {"metadata": {"name": "train-x"}, "spec": {}}

    def extract(_: object) -> object:
        raise XComRetrievalError("not running")

    result, error = collect.read_result(
        raw, state, None, watched("ended"), base="base", cluster=cluster, extract=extract
    )
    assert result is None
    assert type(error) is PodResultLost
    assert not error.retryable
    assert says in str(error)
    assert "succeeded, but its result is lost" in error.what


@pytest.mark.parametrize("code", [0, 137, 143])
def test_one_whose_container_was_ended_with_its_machine_or_by_its_reader_is_preempted(code: int) -> None:
    state = pod(ended(0), ended(code, name="airflow-xcom-sidecar"))
    assert type(unread(state, LookupError(), pod="train-x", node_is_there=True)) is PodPreempted


BY_RBAC = 'pods "train-x" is forbidden: User "a" cannot get resource "pods/exec" in API group "" in the namespace "ml"'
BY_POLICY = 'admission webhook "validate.kyverno.svc-fail" denied the request: exec is not allowed'
NOT_ANSWERED = "error dialing backend: dial tcp 10.0.0.1:10250: connect: connection refused"


def refusal(status: int, message: str) -> ApiException:
    error = ApiException(status=status, reason="refused")
    error.body = json.dumps({"message": message})
    return error


@pytest.mark.parametrize(
    ("state", "cause", "error_type", "says"),
    [
        (pod(ended(0), SIDECAR), refusal(403, BY_RBAC), PodResultLost, 'resources ["pods/exec"], verbs ["get"]'),
        (pod(ended(0), SIDECAR), refusal(403, "Forbidden"), PodResultLost, "pods/exec"),
        (pod(ended(0), SIDECAR), refusal(400, BY_POLICY), PodResultLost, "kyverno"),
        (pod(ended(0), SIDECAR), refusal(500, NOT_ANSWERED), ResultUnread, "10250: connect: connection refused"),
        (pod(ended(0), SIDECAR), refusal(0, "no route to host"), ResultUnread, "no route to host"),
        (pod(ended(0), PULLS), XComRetrievalError("not running"), PodResultLost, "xcom_sidecar_container_image"),
    ],
)
def test_what_exec_answers_is_told_with_the_success(
    state: PodState, cause: Exception, error_type: type[GpuError], says: str
) -> None:
    error = unread(state, cause, pod="train-x", node_is_there=True)
    assert type(error) is error_type
    assert says in str(error)
    assert "Pod train-x succeeded, but its result c" in str(error)
    assert error.retryable is (error_type is ResultUnread)
    assert error_type is not ResultUnread or "another try runs the training again" in error.fix
    failed = unread(state, cause, pod="train-x", node_is_there=True, succeeded=False)
    assert "succeeded" not in failed.what
