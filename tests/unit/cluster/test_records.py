"""Nodes, pods and demand, read from what an API server sends."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider.cluster.model.node import CORDONED_BY, Node
from airflow_gpu_provider.cluster.model.pool_pod import RUN_LABEL, STUCK_AFTER, Pod
from airflow_gpu_provider.cluster.model.uncollected import UNCOLLECTED
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from airflow_gpu_provider.pools.switch import COLLECT_WITHIN
from airflow_gpu_provider.scaling.state.demand import DemandLease

NOW = datetime(2026, 3, 1, 2, 0, tzinfo=UTC)
STAMP = "2026-03-01T01:00:00Z"


def raw_node(**spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "node", "uid": "u", "creationTimestamp": STAMP, "resourceVersion": "7"},
        "spec": {"providerID": "aws:///us-west-2a/i-0abc", **spec},
        "status": {
            "conditions": [
                {"type": "MemoryPressure", "status": "False"},
                {"type": "Ready", "status": "True", "lastTransitionTime": "2026-03-01T01:00:30Z"},
            ],
            "allocatable": {"nvidia.com/gpu": "4"},
        },
    }


def raw_pod(**changes: Any) -> dict[str, Any]:
    pod: dict[str, Any] = {
        "metadata": {"name": "pod", "namespace": "ns", "uid": "u", "creationTimestamp": STAMP},
        "spec": {
            "nodeName": "node",
            "nodeSelector": {POOL_LABEL: "train"},
            "containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}, {}],
        },
        "status": {"phase": "Running"},
    }
    for part, fields in changes.items():
        pod[part] |= fields
    return pod


def test_a_ready_node() -> None:
    node = Node.parse(raw_node())
    assert (node.machine, node.gpus, node.ready, node.usable, node.not_ready_reason) == ("i-0abc", 4, True, True, "")
    assert node.ready_changed_at == datetime(2026, 3, 1, 1, 0, 30, tzinfo=UTC)


def test_a_node_that_has_not_reported() -> None:
    raw = raw_node()
    del raw["status"]
    node = Node.parse(raw)
    assert (node.ready, node.gpus, node.ready_changed_at) == (False, 0, node.created_at)
    assert node.not_ready_reason == "the kubelet has not reported yet"


@pytest.mark.parametrize("marked", [True, False])
def test_whose_cordon_it_is(marked: bool) -> None:
    raw = raw_node(unschedulable=True)
    raw["metadata"]["annotations"] = {CORDONED_BY: "me"} if marked else {}
    node = Node.parse(raw)
    assert (node.cordoned, node.cordoned_by_us, node.usable) == (True, marked, False)


def test_a_mark_without_a_cordon_is_no_cordon() -> None:
    raw = raw_node()
    raw["metadata"]["annotations"] = {CORDONED_BY: "me"}
    assert (Node.parse(raw).cordoned_by_us, Node.parse(raw).cordon_mark, Node.parse(raw).usable) == (False, True, True)


def test_what_cluster_autoscaler_removes_is_not_usable() -> None:
    taint = {"key": "ToBeDeletedByClusterAutoscaler", "value": "1", "effect": "NoSchedule"}
    assert not Node.parse(raw_node(taints=[taint])).usable


def test_a_running_pod() -> None:
    pod = Pod.parse(raw_pod(metadata={"labels": {RUN_LABEL: "abc"}}))
    assert (pod.node, pod.gpus, pod.run, pod.holds_node(NOW)) == ("node", 1, "abc", True)
    assert pod.selects({POOL_LABEL: "train"})
    assert not pod.selects({POOL_LABEL: "another"})
    assert not pod.selects({POOL_LABEL: "train", "zone": "a"})


def test_gpus_of_init_containers_and_sidecars() -> None:
    two = {"resources": {"limits": {"nvidia.com/gpu": "2"}}}
    assert Pod.parse(raw_pod(spec={"initContainers": [two]})).gpus == 2
    assert Pod.parse(raw_pod(spec={"initContainers": [{**two, "restartPolicy": "Always"}]})).gpus == 3


@pytest.mark.parametrize(
    "metadata",
    [
        {"ownerReferences": [{"kind": "DaemonSet", "name": "plugin"}]},
        {"annotations": {"kubernetes.io/config.mirror": "x"}},
    ],
)
def test_daemons_and_static_pods_hold_no_node(metadata: dict[str, Any]) -> None:
    assert not Pod.parse(raw_pod(metadata=metadata)).holds_node(NOW)


def test_a_pod_that_waits_holds_no_node() -> None:
    assert not Pod.parse(raw_pod(spec={"nodeName": ""}, status={"phase": "Pending"})).holds_node(NOW)


@pytest.mark.parametrize(
    ("codes", "succeeded"),
    [
        ({"base": 0}, True),
        ({"base": 0, "airflow-xcom-sidecar": None}, True),
        ({"base": 1}, False),
        ({"base": None}, False),
        ({"base": 0, "other": None}, False),
        ({}, False),
    ],
)
def test_a_pod_has_succeeded_whatever_becomes_of_the_container_that_keeps_its_result(
    codes: dict[str, int | None], succeeded: bool
) -> None:
    states = {
        name: {"running": {}} if code is None else {"terminated": {"exitCode": code}} for name, code in codes.items()
    }
    status = {"containerStatuses": [{"name": name, "state": state} for name, state in states.items()]}
    assert Pod.parse(raw_pod(status=status)).succeeded is succeeded


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_finished_pod_holds_its_node_until_it_is_collected_or_late(phase: str) -> None:
    ended = {"state": {"terminated": {"finishedAt": "2026-03-01T01:59:00Z", "exitCode": 0}}}
    status = {"phase": phase, "containerStatuses": [ended]}
    uncollected = Pod.parse(raw_pod(metadata={"annotations": {UNCOLLECTED: "true"}}, status=status))
    assert uncollected.holds_node(NOW)
    assert not uncollected.holds_node(NOW + COLLECT_WITHIN)
    for seconds, minutes in (("3600", 60), ("60", 10), ("9" * 5000, 10), ("-1", 10)):
        noted = Pod.parse(raw_pod(metadata={"annotations": {UNCOLLECTED: seconds}}, status=status))
        ended_at = NOW - timedelta(minutes=1)
        assert noted.holds_node(ended_at + timedelta(minutes=minutes, seconds=-1))
        assert not noted.holds_node(ended_at + timedelta(minutes=minutes))
        assert noted.lets_go_at == ended_at + timedelta(minutes=minutes)
    assert not Pod.parse(raw_pod(status=status)).holds_node(NOW)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_finished_pod_that_is_deleted_holds_no_node_whatever_keeps_it(phase: str) -> None:
    ended = {"state": {"terminated": {"finishedAt": "2026-03-01T01:59:00Z", "exitCode": 0}}}
    metadata = {
        "annotations": {UNCOLLECTED: "true"},
        "deletionTimestamp": "2026-03-01T01:59:30Z",
        "finalizers": ["kueue.x-k8s.io/managed"],
    }
    pod = Pod.parse(raw_pod(metadata=metadata, status={"phase": phase, "containerStatuses": [ended]}))
    assert not pod.holds_node(NOW)
    assert pod.is_stuck(NOW)
    assert not pod.is_stuck(NOW - timedelta(seconds=56))
    assert not replace(pod, finalizers=()).is_stuck(NOW)
    assert not replace(pod, phase="Running").is_stuck(NOW)
    assert replace(pod, phase="Running").holds_node(NOW), "its kubelet may not have ended it"


def test_how_long_a_pod_ran() -> None:
    """One that is deleted and whose node is gone never finishes, and did not run on until somebody asked."""
    started = {"containerStatuses": [{"state": {"running": {"startedAt": "2026-03-01T01:10:00Z"}}}]}
    begun = datetime(2026, 3, 1, 1, 10, tzinfo=UTC)
    assert Pod.parse(raw_pod()).ran(NOW) is None
    assert Pod.parse(raw_pod(status=started)).ran(NOW) == (begun, NOW)
    deleted = {"deletionTimestamp": "2026-03-01T01:40:00Z"}
    lost = Pod.parse(raw_pod(status=started, metadata=deleted))
    assert lost.ran(NOW) == (begun, NOW - timedelta(minutes=20))
    assert lost.ran(NOW - timedelta(minutes=25)) == (begun, NOW - timedelta(minutes=25))


def test_an_evicted_pod_ended_when_its_conditions_last_changed() -> None:
    conditions = [{"type": "DisruptionTarget", "lastTransitionTime": "2026-03-01T01:30:00Z"}]
    pod = Pod.parse(raw_pod(status={"phase": "Failed", "reason": "Evicted", "conditions": conditions}))
    assert pod.finished_at == datetime(2026, 3, 1, 1, 30, tzinfo=UTC)


def test_a_pod_that_is_being_deleted_holds_its_node_until_its_kubelet_must_be_dead() -> None:
    pod = Pod.parse(raw_pod(metadata={"deletionTimestamp": "2026-03-01T02:00:00Z"}))
    assert pod.deleting
    assert pod.holds_node(NOW)
    assert not pod.holds_node(NOW + STUCK_AFTER)


keys = st.builds(
    DemandKey, installation=st.text(), dag_id=st.text(), run_id=st.text(), pool=st.just("train"), block=st.text()
)
times = st.datetimes(datetime(2020, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))


@given(
    st.builds(
        DemandLease,
        key=keys,
        nodes=st.integers(0, 99),
        until=times,
        created_at=times,
        attempts=st.integers(0, 99),
        attempt_since=st.none() | times,
        resume_at=st.none() | times,
    )
)
def test_demand_survives_its_way_through_a_lease(lease: DemandLease) -> None:
    assert DemandLease.parse(lease.manifest()) == lease


@given(keys, keys)
def test_different_runs_have_different_names(one: DemandKey, other: DemandKey) -> None:
    assert (one.hash == other.hash) == (one == other)
    assert one.lease_name.replace("-", "").isalnum()


def test_what_a_lease_is_called_does_not_change() -> None:
    key = DemandKey(installation="airflow", dag_id="nightly", run_id="manual__2026-03-01T02:00:00+00:00", pool="train")
    assert key.lease_name == "demand-2bb8093d4681fec3e068"
    assert str(key) == "nightly/manual__2026-03-01T02:00:00+00:00"


def test_each_block_of_a_run_wants_nodes_for_itself() -> None:
    run = DemandKey(installation="airflow", dag_id="nightly", run_id="r", pool="train")
    blocks = [run, *(replace(run, block=name) for name in ("train", "train[0]", "train[10]", "x" * 250))]
    assert len({key.lease_name for key in blocks}) == len(blocks)
    assert all(len(key.lease_name) <= 63 for key in blocks)
    assert str(blocks[2]) == "nightly/r/train[0]"


def test_demand_ends_at_its_time() -> None:
    key = DemandKey(installation="a", dag_id="b", run_id="c", pool="train")
    lease = DemandLease(key=key, nodes=1, until=NOW, created_at=NOW - timedelta(hours=1))
    assert lease.live(NOW - timedelta(seconds=1))
    assert not lease.live(NOW)
