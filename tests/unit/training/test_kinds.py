"""Where each kind keeps its pod templates, its suspension, its deadline and its end; and what is no known kind."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.training.place.kinds import KINDS, WorkloadEnd, kind_of, templates_of
from tests.unit.training.manifests import ALL, a, with_condition, with_status

_PODS = {
    "Job": [("", 2)],
    "JobSet": [("driver", 1), ("workers", 4)],
    "TrainJob": [("node", 2)],
    "RayJob": [("head", 1), ("gpus", 2)],
    "PyTorchJob": [("master", 1), ("worker", 3)],
}
_GOOD = {
    "Job": with_condition("Job", "Complete"),
    "JobSet": with_condition("JobSet", "Completed"),
    "TrainJob": with_condition("TrainJob", "Complete"),
    "RayJob": with_status("RayJob", jobDeploymentStatus="Complete", jobStatus="SUCCEEDED"),
    "PyTorchJob": with_condition("PyTorchJob", "Succeeded"),
}
_SAID = {"reason": "BackoffLimitExceeded", "message": "it has failed"}
_BAD = {
    "Job": with_condition("Job", "Failed", **_SAID),
    "JobSet": with_condition("JobSet", "Failed", **_SAID),
    "TrainJob": with_condition("TrainJob", "Failed", **_SAID),
    "RayJob": with_status("RayJob", jobDeploymentStatus="Failed", jobStatus="FAILED", **_SAID),
    "PyTorchJob": with_condition("PyTorchJob", "Failed", **_SAID),
}


def test_each_kind_of_the_table_has_a_manifest_here() -> None:
    assert set(KINDS) == set(ALL) == set(_PODS)


@pytest.mark.parametrize("kind", KINDS)
def test_templates_and_their_pods(kind: str) -> None:
    assert [(each.role, each.pods) for each in templates_of(a(kind))] == _PODS[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_ends(kind: str) -> None:
    row = KINDS[kind]
    assert row.end(a(kind)) is None
    assert row.end(_GOOD[kind]) == WorkloadEnd(succeeded=True, reason=_ray(kind, "SUCCEEDED"))
    assert row.end(_BAD[kind]) == WorkloadEnd(succeeded=False, **_SAID)


def _ray(kind: str, job_status: str) -> str:
    return job_status if kind == "RayJob" else ""


@pytest.mark.parametrize("kind", ["Job", "JobSet", "TrainJob", "PyTorchJob"])
def test_a_condition_that_is_false_is_no_end(kind: str) -> None:
    assert KINDS[kind].end(with_condition(kind, "Failed", status="False")) is None


@pytest.mark.parametrize(
    ("status", "succeeded"),
    [
        ({"jobDeploymentStatus": "Retrying", "jobStatus": "FAILED"}, None),
        ({"jobDeploymentStatus": "Running", "jobStatus": "SUCCEEDED"}, None),
        ({"jobDeploymentStatus": "Complete", "jobStatus": "STOPPED"}, False),
        ({"jobDeploymentStatus": "ValidationFailed"}, False),
    ],
)
def test_a_ray_job_ends_with_its_deployment(status: dict[str, str], succeeded: bool | None) -> None:
    end = KINDS["RayJob"].end(with_status("RayJob", **status))
    assert (end.succeeded if end else None) is succeeded


@pytest.mark.parametrize("kind", KINDS)
def test_the_deadline_is_where_the_controller_reads_it(kind: str) -> None:
    manifest = a(kind)
    KINDS[kind].limit_time(manifest, 600)
    KINDS[kind].limit_time(manifest, 900)
    assert [each["activeDeadlineSeconds"] for each in KINDS[kind].limits(manifest)] == [600] * len(
        [*KINDS[kind].limits(manifest)]
    )


@pytest.mark.parametrize("kind", KINDS)
def test_suspension_is_read_where_the_kind_has_it(kind: str) -> None:
    manifest = a(kind)
    assert not KINDS[kind].is_suspended(manifest)
    policy = manifest
    for key in KINDS[kind].policy:
        policy = policy.setdefault(key, {})
    policy["suspend"] = True
    assert KINDS[kind].is_suspended(manifest)


@pytest.mark.parametrize(
    ("kind", "labels", "title"),
    [
        ("Job", {"batch.kubernetes.io/job-completion-index": "1"}, "pod 1"),
        ("Job", {}, "train-x7k2p"),
        (
            "JobSet",
            {
                "jobset.sigs.k8s.io/replicatedjob-name": "workers",
                "jobset.sigs.k8s.io/job-index": "1",
                "batch.kubernetes.io/job-completion-index": "0",
            },
            "workers 1-0",
        ),
        (
            "TrainJob",
            {
                "jobset.sigs.k8s.io/replicatedjob-name": "node",
                "batch.kubernetes.io/job-completion-index": "1",
            },
            "node 1",
        ),
        ("RayJob", {"ray.io/node-type": "head"}, "head"),
        ("RayJob", {"ray.io/node-type": "worker"}, "train-x7k2p"),
        (
            "PyTorchJob",
            {"training.kubeflow.org/replica-type": "worker", "training.kubeflow.org/replica-index": "2"},
            "worker 2",
        ),
    ],
)
def test_what_a_pod_is_called(kind: str, labels: dict[str, str], title: str) -> None:
    assert KINDS[kind].pod_title({"metadata": {"name": "train-x7k2p", "labels": labels}}) == title


@pytest.mark.parametrize(
    "manifest",
    [
        {},
        {"apiVersion": "apps/v1", "kind": "Deployment"},
        {"apiVersion": "jobset.x-k8s.io/v1alpha1", "kind": "JobSet"},
        {"apiVersion": "kubeflow.org/v1", "kind": "TFJob"},
    ],
)
def test_an_unknown_kind_is_refused_with_the_known_ones(manifest: dict[str, Any]) -> None:
    with pytest.raises(PoolSpecError) as refused:
        kind_of(manifest)
    assert all(f"{each.kind} ({each.api_version})" in str(refused.value) for each in KINDS.values())


@pytest.mark.parametrize("kind", KINDS)
def test_a_manifest_without_templates_is_refused(kind: str) -> None:
    for spec in ({}, None, {"replicatedJobs": []}, {"pytorchReplicaSpecs": {}}):
        with pytest.raises(PoolSpecError, match="pod template"):
            templates_of({**a(kind), "spec": spec})
