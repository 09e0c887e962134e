"""The waits' steps, with plain data and no clock: done, not yet and why, or which error."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.clouds.answers import GroupUpdate, Reserved
from airflow_gpu_provider.clouds.base import Group, LaunchFailure, Machine
from airflow_gpu_provider.cluster.model.node import Node
from airflow_gpu_provider.cluster.model.pool_pod import Pod
from airflow_gpu_provider.errors import (
    GpuError,
    GpusNotAllocatable,
    GroupFailed,
    NodesNotReady,
    OutOfStock,
    PoolNotReleased,
)
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot
from airflow_gpu_provider.scaling.state.demand import DemandLease
from airflow_gpu_provider.scaling.wait.nodes_wait import NodesWait
from airflow_gpu_provider.scaling.wait.release_wait import ReleaseWait
from airflow_gpu_provider.times import format_seconds

START = datetime(2026, 1, 1, 2, 0, tzinfo=UTC)
SPEC = EksGpuPool(
    name="train-gpu", cluster_name="k8s-ml", region="us-west-2", instance_types=["g6.xlarge"], max_nodes=3
)
A, B = SPEC.candidates(["us-west-2a", "us-west-2b"])
MINE = DemandKey(installation="here", dag_id="nightly", run_id="r1", pool="train-gpu")
OTHER = replace(MINE, run_id="r2")


def lease(key: DemandKey, nodes: int = 1, after: float = 0) -> DemandLease:
    return DemandLease(
        key=key, nodes=nodes, until=START + timedelta(hours=6), created_at=START + timedelta(seconds=after)
    )


def machine(number: int, state: Any = "running") -> Machine:
    return Machine(id=f"i-{number}", group=A.group, state=state, launched_at=START + timedelta(seconds=10))


def group(*machines: Machine, **fields: Any) -> Group:
    defaults: dict[str, Any] = {
        "name": A.group,
        "candidate": A,
        "status": "active",
        "desired": len([m for m in machines if m.state != "terminating"]),
        "max_size": 3,
        "machines": machines,
    }
    return Group(**{**defaults, **fields})


def node(number: int, *, ready: bool = True, gpus: int = 1) -> Node:
    status = "True" if ready else "False"
    at = (START + timedelta(seconds=50)).isoformat()
    return Node.parse(
        {
            "metadata": {
                "name": f"node-{number}",
                "uid": f"uid-{number}",
                "resourceVersion": "1",
                "creationTimestamp": at,
                "labels": {
                    "topology.kubernetes.io/zone": "us-west-2a",
                    "node.kubernetes.io/instance-type": "g6.xlarge",
                },
            },
            "spec": {"providerID": f"aws:///us-west-2a/i-{number}"},
            "status": {
                "conditions": [
                    {
                        "type": "Ready",
                        "status": status,
                        "reason": "KubeletNotReady",
                        "message": "cni plugin not initialized",
                        "lastTransitionTime": at,
                    }
                ],
                "allocatable": {"nvidia.com/gpu": str(gpus)} if gpus else {},
            },
        }
    )


def pod(key: DemandKey | None, on: str | None) -> Pod:
    labels = {"airflow-gpu-provider/run": key.hash} if key else {}
    return Pod.parse(
        {
            "metadata": {
                "namespace": "ml",
                "name": "train-abc",
                "uid": "u",
                "creationTimestamp": START.isoformat(),
                "labels": labels,
            },
            "spec": {
                "nodeName": on,
                "nodeSelector": SPEC.node_selector,
                "containers": [{"name": "base", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
            },
            "status": {"phase": "Running" if on else "Pending"},
        }
    )


def snapshot(*, at: float = 60, **parts: Any) -> PoolSnapshot:
    defaults: dict[str, Any] = {"leases": (), "nodes": (), "pods": (), "groups": ()}
    return PoolSnapshot(now=START + timedelta(seconds=at), pool=SPEC, **{**defaults, **parts})


def nodes_wait(wait_for: Any = "ready") -> NodesWait:
    return NodesWait(key=MINE, wait_for=wait_for, started=START, deadline=START + timedelta(minutes=30))


def release_wait() -> ReleaseWait:
    return ReleaseWait(key=MINE, started=START, deadline=START + timedelta(minutes=30))


class TestNodesWait:
    def test_a_ready_node_is_enough_before_the_plugin_runs(self) -> None:
        seen = snapshot(leases=(lease(MINE),), nodes=(node(1, gpus=0),), groups=(group(machine(1)),))
        progress = nodes_wait().step(seen)
        assert progress.done
        assert progress.result is not None
        assert progress.result["nodes"][0]["capacity_type"] == "ON_DEMAND"
        assert [phase["phase"] for phase in progress.result["timeline"]] == [
            "machine launched",
            "node joined",
            "node ready",
        ]
        assert sum(phase["seconds"] for phase in progress.result["timeline"]) == 60

    def test_the_wait_for_a_block_to_begin_is_a_phase_of_its_own(self) -> None:
        launched = replace(machine(1), launched_at=START + timedelta(seconds=40))
        for began, phases in ((30.0, [("reservation began", 30.0), ("machine launched", 10.0)]), (-60.0, [])):
            block = Reserved(id="cr-1", began_at=START + timedelta(seconds=began))
            groups = (group(launched, reserved=block),)
            result = nodes_wait().step(snapshot(leases=(lease(MINE),), nodes=(node(1),), groups=groups)).result
            found = [(each["phase"], each["seconds"]) for each in result["timeline"]] if result else []
            assert found[:2] == (phases or [("machine launched", 40.0), ("node joined", 10.0)])

    def test_gpus_have_to_be_allocatable_where_that_is_wanted(self) -> None:
        seen = snapshot(leases=(lease(MINE),), nodes=(node(1, gpus=0),), groups=(group(machine(1)),))
        progress = nodes_wait("gpus").step(seen)
        assert not progress.done
        assert "node node-1 is Ready, no allocatable GPUs yet" in progress.lines
        assert nodes_wait("gpus").step(replace(seen, nodes=(node(1),))).done

    def test_each_run_waits_for_its_own_share_the_older_first(self) -> None:
        both = (lease(MINE), lease(OTHER, after=1))
        seen = snapshot(leases=both, nodes=(node(1),), groups=(group(machine(1)),))
        assert nodes_wait().step(seen).done
        assert not replace(nodes_wait(), key=OTHER).step(seen).done

    @pytest.mark.parametrize(
        ("parts", "error", "says"),
        [
            ({"groups": (group(machine(1)),)}, NodesNotReady, "Not joined: i-1"),
            (
                {"groups": (group(machine(1)),), "nodes": (node(1, ready=False),)},
                NodesNotReady,
                "node-1 (cni plugin not initialized)",
            ),
            (
                {
                    "groups": (
                        group(
                            desired=1,
                            launch_failure=LaunchFailure(
                                at=START, message="InsufficientInstanceCapacity", kind="out_of_stock"
                            ),
                        ),
                    )
                },
                OutOfStock,
                "No capacity for g6.xlarge on-demand in us-west-2a (tried once, last failed at 02:00Z): Insufficient",
            ),
            (
                {
                    "groups": (
                        group(
                            desired=1,
                            launch_failure=LaunchFailure(at=START, message="The image does not exist"),
                        ),
                    )
                },
                NodesNotReady,
                "The image does not exist",
            ),
        ],
    )
    def test_the_error_at_the_deadline_is_the_explanation(
        self, parts: dict[str, Any], error: type[GpuError], says: str
    ) -> None:
        seen = snapshot(at=1800, leases=(lease(MINE),), **parts)
        progress = nodes_wait().step(seen)
        assert type(progress.error) is error
        assert says in str(progress.error)
        assert nodes_wait().step(replace(seen, now=START + timedelta(seconds=1799))).error is None

    @pytest.mark.parametrize(("minutes", "is_told"), [(4, True), (6, False)])
    def test_a_wait_that_ends_before_the_next_try_says_so(self, minutes: int, is_told: bool) -> None:
        failure = LaunchFailure(at=START, message="InsufficientInstanceCapacity", kind="out_of_stock")
        seen = snapshot(at=120, leases=(lease(MINE),), groups=(group(launch_failure=failure),))
        wait = replace(nodes_wait(), deadline=START + timedelta(minutes=minutes))
        line = "this wait ends at 02:04:00Z, before the next try at 02:05:00Z"
        assert (line in wait.step(seen).lines) == is_told
        other_zone = group(name=B.group, candidate=B)
        assert line not in wait.step(replace(seen, groups=(*seen.groups, other_zone))).lines

    def test_gpus_that_never_come_name_the_node(self) -> None:
        seen = snapshot(at=1800, leases=(lease(MINE),), nodes=(node(1, gpus=0),), groups=(group(machine(1)),))
        progress = nodes_wait("gpus").step(seen)
        assert isinstance(progress.error, GpusNotAllocatable)
        assert "node-1" in str(progress.error)

    def test_groups_that_all_failed_end_the_wait_at_once(self) -> None:
        failed = group(status="failed", issues=("NodeCreationFailure",))
        seen = snapshot(at=5, leases=(lease(MINE),), groups=(failed,))
        progress = nodes_wait().step(seen)
        assert isinstance(progress.error, GroupFailed)
        assert "NodeCreationFailure" in str(progress.error)
        one_works = replace(seen, groups=(failed, group(name=B.group, candidate=B)))
        assert nodes_wait().step(one_works).error is None


class TestReleaseWait:
    @pytest.mark.parametrize(
        ("parts", "says"),
        [
            ({"groups": (group(machine(1, "terminating")),)}, "waiting for machine i-1"),
            ({"nodes": (node(1),)}, "waiting for node node-1 to leave"),
            (
                {"groups": (group(machine(1)),), "nodes": (node(1),)},
                "machine i-1 of train-gpu-a-g6-xlarge is to be released",
            ),
            (
                {"groups": (replace(group(machine(1)), status="updating"),), "nodes": (node(1),)},
                "machine i-1 is to be released when train-gpu-a-g6-xlarge has been updated",
            ),
            ({"groups": (group(desired=1),)}, "is to stop requesting"),
        ],
    )
    def test_waits_for_all_that_only_this_run_wanted(self, parts: dict[str, Any], says: str) -> None:
        progress = release_wait().step(snapshot(**parts))
        assert not progress.done
        assert any(says in line for line in progress.lines), progress.lines

    def test_an_update_in_the_way_is_named_and_after_its_time_with_what_to_do(self) -> None:
        update = GroupUpdate(
            name="operation-1", kind="UPGRADE_NODES", since=START, what_to_do="Cancel it.", takes=timedelta(minutes=1)
        )
        held = replace(group(machine(1)), status="updating", update=update)
        seen = snapshot(at=30, groups=(held,), nodes=(node(1),))
        progress = release_wait().step(seen)
        assert any("(operation-1, UPGRADE_NODES since" in line for line in progress.lines)
        assert not any("Cancel it." in line for line in progress.lines)
        later = release_wait().step(replace(seen, now=START + timedelta(seconds=61)))
        assert any(line.endswith("Cancel it.") for line in later.lines)
        late = release_wait().step(replace(seen, now=release_wait().deadline))
        assert late.error is not None
        assert "operation-1" in late.error.what
        assert late.error.fix.endswith("Cancel it.")

    def test_own_pods_are_waited_for(self) -> None:
        seen = snapshot(groups=(group(machine(1)),), nodes=(node(1),), pods=(pod(MINE, "node-1"),))
        progress = release_wait().step(seen)
        assert not progress.done
        assert any("ml/train-abc" in line for line in progress.lines)

    def test_zero_is_done(self) -> None:
        progress = release_wait().step(snapshot(groups=(group(),)))
        assert progress.done
        assert progress.result is not None
        assert (progress.result["nodes"], progress.result["desired"], progress.result["kept"]) == (0, 0, [])

    def test_what_another_run_wants_is_kept_and_named(self) -> None:
        seen = snapshot(leases=(lease(OTHER),), groups=(group(machine(1)),), nodes=(node(1),))
        progress = release_wait().step(seen)
        assert progress.done
        assert progress.result is not None
        assert progress.result["kept"] == ["kept for nightly/r2: 1 node until 2026-01-01 08:00Z"]

    def test_a_strangers_pod_is_kept_and_named(self) -> None:
        seen = snapshot(groups=(group(machine(1)),), nodes=(node(1),), pods=(pod(None, "node-1"),))
        progress = release_wait().step(seen)
        assert progress.done
        assert "kept for pod ml/train-abc on node-1" in progress.lines

    def test_a_strangers_pod_that_is_ending_is_waited_for(self) -> None:
        """A Deployment that the run deleted a moment ago: with no run left, nobody else would take the node away."""
        ending = replace(pod(None, "node-1"), delete_at=START + timedelta(seconds=30))
        seen = snapshot(groups=(group(machine(1)),), nodes=(node(1),), pods=(ending,))
        progress = release_wait().step(seen)
        assert not progress.done
        assert progress.lines == ("waiting for pod ml/train-abc: it is ending",)
        assert release_wait().step(replace(seen, leases=(lease(OTHER),))).done

    def test_too_late_names_what_is_left(self) -> None:
        seen = snapshot(at=1800, groups=(group(machine(1, "terminating")),))
        progress = release_wait().step(seen)
        assert isinstance(progress.error, PoolNotReleased)
        assert progress.error.retryable
        assert "i-1" in str(progress.error)


@pytest.mark.parametrize("make", [nodes_wait, release_wait])
def test_a_wait_survives_the_trigger_s_row(make: Callable[[], Any]) -> None:
    wait = make()
    assert type(wait).from_record(json.loads(json.dumps(wait.to_record()))) == wait


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (42, "42 s"), (190, "3 min 10 s"), (7500, "2 h 5 min")])
def test_durations_read_well(seconds: float, text: str) -> None:
    assert format_seconds(timedelta(seconds=seconds)) == text
