"""What a run leaves of its gangs: the Job goes before its pods, and one that waits, which has none, goes too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from airflow_gpu_provider.cluster.model.pool_pod import GANG_LABEL, Pod
from airflow_gpu_provider.errors import PermissionDenied
from airflow_gpu_provider.scaling.apply import reconcile
from airflow_gpu_provider.scaling.apply.reconcile import Reconciler
from tests.unit.scaling.apply.test_admission import job
from tests.unit.scaling.pools import EARLIER, key, lease, pod, pool


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    asked: list[str] = []

    def delete_job(_api: object, namespace: str, name: str, uid: str) -> bool:
        asked.append(f"job {namespace}/{name} {uid}")
        if name == "kept":
            raise PermissionDenied("It may not.", "Allow it.")
        return True

    def delete_pod(_api: object, pod: Pod) -> bool:
        asked.append(f"pod {pod}")
        return True

    def list_gang_jobs(_api: object, pool: str, run: str) -> Any:
        asked.append("list jobs")
        return (job("waits"),)

    for double in (delete_job, delete_pod, list_gang_jobs):
        monkeypatch.setattr(reconcile, double.__name__, double)
    monkeypatch.setattr(reconcile, "Ledger", Mock())
    return asked


@pytest.fixture
def reconciler() -> Reconciler:
    return Reconciler(pool(), Mock(), Mock(), holder="test", report=print, clock=Mock(), at_once=1)


def ranks(name: str) -> list[Pod]:
    return [pod(f"{name}-{rank}", on=rank, job=f"uid-{name}", job_name=name) for rank in range(2)]


def test_a_job_goes_before_its_pods(asked: list[str], reconciler: Reconciler) -> None:
    deleted = reconciler.delete_pods([*ranks("train"), pod("single", on=3)])
    assert asked == ["job default/train uid-train", "pod default/train-0", "pod default/train-1", "pod default/single"]
    assert deleted == ["default/train-0", "default/train-1", "default/single"]


def test_pods_go_though_their_job_may_not_be_deleted(asked: list[str], reconciler: Reconciler) -> None:
    with pytest.raises(PermissionDenied, match="Job default/kept could not be deleted: It may not"):
        reconciler.delete_pods(ranks("kept"))
    assert asked[1:] == ["pod default/kept-0", "pod default/kept-1"]


def test_jobs_are_asked_for_where_the_run_wanted_nodes_for_a_gang(asked: list[str], reconciler: Reconciler) -> None:
    assert reconciler.delete_gangs(lease(nodes=2)) == []
    assert asked == []
    assert reconciler.delete_gangs(replace(lease(nodes=2), gang=2)) == ["default/waits"]
    assert asked == ["list jobs", "job default/waits waits"]


def test_only_a_gang_s_pods_name_their_job() -> None:
    raw: dict[str, Any] = {
        "metadata": {
            "namespace": "ml",
            "name": "train-0",
            "creationTimestamp": EARLIER.isoformat(),
            "labels": {GANG_LABEL: "2", "airflow-gpu-provider/run": key("run").hash},
            "ownerReferences": [{"kind": "Job", "name": "train", "uid": "u"}],
        }
    }
    assert (Pod.parse(raw).job, Pod.parse(raw).job_name) == ("u", "train")
    del raw["metadata"]["labels"][GANG_LABEL]
    assert Pod.parse(raw).job == ""
