"""Machines that others bring: a decision never removes one, and runs share what is there."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider import KubernetesGpuPool
from airflow_gpu_provider.clouds.base import LaunchFailure
from airflow_gpu_provider.cluster.model.kept_machines import KeptMachine
from airflow_gpu_provider.errors import OutOfStock, QuotaExceeded
from airflow_gpu_provider.scaling.decide.decisions import decide
from airflow_gpu_provider.scaling.decide.shortage import missing_for_pods, reported_by_autoscaler
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot, usable_needed
from airflow_gpu_provider.scaling.wait.nodes_wait import NodesWait
from airflow_gpu_provider.scaling.wait.release_wait import ReleaseWait
from tests.unit.scaling.pools import EARLIER, LATER, NOW, A, dry, key, lease, machine, node, pod, snapshot


def metal(*numbers: int, when_idle: Literal["keep", "cordon"] = "keep", **fields: Any) -> PoolSnapshot:
    """A pool whose only group is of these machines, which are there whatever happens."""
    taken = snapshot(*(machine(number) for number in numbers), **fields)
    (group,) = (each for each in taken.groups if each.name == A)
    fixed = replace(group, when_idle=when_idle, has_switch=False, switch_at=None, max_size=len(numbers))
    return replace(taken, groups=(fixed,))


@given(
    numbers=st.sets(st.integers(1, 5)),
    wanted=st.integers(0, 6),
    when_idle=st.sampled_from(["keep", "cordon"]),
    ready=st.booleans(),
)
def test_no_machine_is_ever_asked_for_or_removed(numbers: set[int], wanted: int, when_idle: Any, ready: bool) -> None:
    leases = (lease(nodes=wanted),) if wanted else ()
    nodes = tuple(node(number, ready=ready) for number in numbers)
    decision = decide(metal(*sorted(numbers), when_idle=when_idle, leases=leases, nodes=nodes))
    assert not decision.release
    assert not decision.grow
    assert not decision.shrink
    assert not decision.switch
    if when_idle == "keep":
        assert not decision.cordon


def test_idle_nodes_are_cordoned_where_the_pool_says_so_and_stay_so() -> None:
    assert decide(metal(1, when_idle="cordon")).cordon == ("node-1",)
    ours = node(1, cordoned=True, cordon_mark=True)
    assert decide(metal(1, when_idle="cordon", nodes=(ours,))).is_empty
    assert decide(metal(1, when_idle="cordon", nodes=(ours,), leases=(lease(),))).uncordon == ("node-1",)
    assert not decide(metal(1, when_idle="cordon", pods=(pod("other", on=1),))).cordon


def test_scale_down_is_done_when_the_pods_are_gone() -> None:
    wait = ReleaseWait(key=key("run"), started=EARLIER, deadline=LATER)
    assert not wait.step(metal(1, 2, pods=(pod("train", on=1, run="run", delete_at=NOW),))).done
    assert wait.step(metal(1, 2)).done
    assert not wait.step(metal(1, when_idle="cordon")).done
    assert wait.step(metal(1, when_idle="cordon", nodes=(node(1, cordoned=True, cordon_mark=True),))).done


@pytest.mark.parametrize(("there", "needed"), [((1,), 1), ((1, 2), 2)])
def test_runs_share_the_nodes_that_are_there(there: tuple[int, ...], needed: int) -> None:
    leases = (lease("first", created_at=EARLIER), lease("second", created_at=NOW))
    assert usable_needed(metal(*there, leases=leases), key("second")) == needed


def test_more_nodes_than_are_there_are_waited_for() -> None:
    assert usable_needed(metal(1, leases=(lease(nodes=3),)), key("run")) == 3


def test_too_few_nodes_in_time_is_an_error_that_names_those_there() -> None:
    wait = NodesWait(key=key("run"), wait_for="ready", started=EARLIER, deadline=NOW)
    taken = metal(1, 2, leases=(lease(nodes=2),), nodes=(node(1), node(2, cordoned=True)))
    error = wait.step(taken).error
    assert "1 of 2 nodes" in str(error)
    assert "node-1, node-2 (cordoned)" in str(error)


def provisioned(*numbers: int, **fields: Any) -> PoolSnapshot:
    """A pool of machines that Karpenter brings and removes."""
    taken = metal(*numbers, **fields)
    (group,) = taken.groups
    return replace(taken, groups=(replace(group, provisioner="Karpenter"),))


def test_scale_down_waits_for_the_provisioner_to_remove_what_nobody_wants() -> None:
    wait = ReleaseWait(key=key("run"), started=EARLIER, deadline=LATER)
    progress = wait.step(provisioned(1))
    assert not progress.done
    assert "waiting for Karpenter to remove it" in progress.lines[0]
    assert decide(provisioned(1)).is_empty
    assert wait.step(provisioned()).done


def test_a_machine_that_is_still_on_its_way_is_waited_for_too() -> None:
    wait = ReleaseWait(key=key("run"), started=EARLIER, deadline=LATER)
    assert not wait.step(provisioned(1, nodes=())).done


def test_scale_down_leaves_the_provisioner_what_others_use_or_want() -> None:
    wait = ReleaseWait(key=key("run"), started=EARLIER, deadline=LATER)
    used = wait.step(provisioned(1, pods=(pod("other", on=1, run="other"),), leases=(lease("other"),)))
    assert used.done
    assert "kept for dag/other" in used.lines[0]
    assert wait.step(provisioned(1, leases=(lease("other"),))).done
    assert wait.step(provisioned(1, 2, leases=(lease("other"),))).lines[0].startswith("node node-")


def test_what_the_provisioner_does_not_remove_in_time_is_an_error_that_names_it() -> None:
    wait = ReleaseWait(key=key("run"), started=EARLIER, deadline=NOW)
    assert "waiting for Karpenter to remove it" in str(wait.step(provisioned(1)).error)


@pytest.mark.parametrize(
    ("said_at", "is_told"),
    [(None, True), (NOW, True), (EARLIER - timedelta(minutes=1), False)],
    ids=["so now", "since the wait began", "before"],
)
def test_why_karpenter_keeps_a_node_is_told_with_how_it_goes(said_at: datetime | None, is_told: bool) -> None:
    wait = ReleaseWait(key=key("run"), started=EARLIER, deadline=NOW)
    kept = {"i-1": KeptMachine(claim="gpu-x5x9l", why="NodePool gpu has consolidateAfter: Never", reported_at=said_at)}
    error = wait.step(replace(provisioned(1), kept=kept)).error
    assert error is not None
    said = "to remove it, no run wants it (Karpenter: NodePool gpu has consolidateAfter: Never)"
    assert (said in error.what) is is_told
    assert "if it repeats, have them removed: kubectl delete nodeclaim gpu-x5x9l." in error.fix
    assert "console" not in error.fix


def test_nodes_of_a_provisioner_are_not_shared_for_want_of_more() -> None:
    leases = (lease("first", created_at=EARLIER), lease("second", created_at=NOW))
    assert usable_needed(provisioned(1, leases=leases), key("second")) == 2


def with_group(taken: PoolSnapshot, **fields: Any) -> PoolSnapshot:
    (group,) = taken.groups
    return replace(taken, groups=(replace(group, **fields),))


REFUSED = "NodeClaim gpu-x7k2p: Unauthorized: User is not authorized to perform this operation"


def test_a_launch_that_is_refused_is_told_while_a_node_is_wanted_although_its_claim_is_there() -> None:
    claim = replace(machine(1, state="requested", launched_at=NOW), lacks=REFUSED)
    stuck = with_group(provisioned(leases=(lease(),)), machines=(claim,), desired=1)
    assert decide(stuck).notes == (f"Karpenter got no machine: {REFUSED}",)
    assert decide(replace(stuck, leases=())).notes == ()
    assert not missing_for_pods(stuck, EARLIER), "it is no stock-out"


def test_node_pools_that_bring_no_node_are_told_while_one_is_wanted() -> None:
    issue = "no NodePool would provision nodes (gpu: it is being deleted)"
    assert decide(with_group(provisioned(leases=(lease(),)), issues=(issue,))).notes == (f"Karpenter: {issue}",)
    assert decide(with_group(provisioned(1, leases=(lease(),)), issues=(issue,))).notes == (), "there is a node for it"
    boots = provisioned(1, leases=(lease(),), nodes=(node(1, ready=False, ready_changed_at=NOW),))
    assert decide(with_group(boots, issues=("NodePool gpu has no room in its limits",))).notes == (), "it is this run's"


@pytest.mark.parametrize(
    ("nodes", "what"),
    [((), "machine i-1 (no node in the pool)"), ((node(1, gpus=0),), "node node-1")],
    ids=["has not joined", "has no device plugin"],
)
def test_a_machine_that_does_not_become_usable_is_told_in_its_provisioners_words(nodes: Any, what: str) -> None:
    lacks = "NodeClaim gpu-x7k2p: NodeNotFound: Node not registered with cluster"
    launched = NOW - timedelta(minutes=4)
    slow = replace(machine(1, state="pending", launched_at=launched), lacks=lacks)
    seen = with_group(provisioned(leases=(lease(),), nodes=nodes), machines=(slow,), desired=1)
    assert decide(seen).notes == (
        f"{what} of {A} was launched at 01:56:00Z, and pods cannot use it yet: Karpenter: {lacks}",
    )
    fresh = replace(slow, launched_at=NOW - timedelta(minutes=2))
    assert decide(with_group(seen, machines=(fresh,))).notes == (), "most machines take as long"


KARPENTER = KubernetesGpuPool(
    name="train", provisioner="karpenter", node_selector_labels={"karpenter.sh/nodepool": "gpu"}, gpus_per_node=1
)


def waiting_for_karpenter(*failures: LaunchFailure, machines: Any = ()) -> PoolSnapshot:
    """A run wants a node; these launches have failed, and the last of them is the newest."""
    seen = replace(provisioned(leases=(lease(),)), pool=KARPENTER)
    newest = failures[-1] if failures else None
    return with_group(seen, machines=machines, launch_failure=newest, failures=failures)


def test_a_launch_that_failed_is_told_to_those_who_waited_then() -> None:
    failed = waiting_for_karpenter(replace(dry(minutes_ago=5), message="insufficient capacity"))
    assert reported_by_autoscaler(failed, EARLIER) == ("Karpenter got no machine: insufficient capacity",)
    assert reported_by_autoscaler(failed, NOW) == (), "another run's"
    assert reported_by_autoscaler(replace(failed, now=NOW + timedelta(minutes=50)), EARLIER) == (), "an hour ago"
    assert decide(failed).notes == (), "a decision does not know who waits"


def test_a_launch_that_is_refused_now_is_told_once() -> None:
    failed = replace(dry(), message=REFUSED.partition(": ")[2], kind="other")
    claim = replace(machine(1, state="requested", launched_at=NOW), lacks=REFUSED)
    assert reported_by_autoscaler(waiting_for_karpenter(failed, machines=(claim,)), EARLIER) == ()


@pytest.mark.parametrize("machines", [(), (machine(1, state="requested", launched_at=NOW),)], ids=["none", "asked for"])
def test_a_stock_out_of_the_provisioners_is_one_with_the_number_of_its_tries(machines: Any) -> None:
    error = missing_for_pods(
        waiting_for_karpenter(*(dry(minutes) for minutes in (3, 2, 1)), machines=machines), EARLIER
    )
    assert type(error) is OutOfStock
    assert "(tried 3 times, last failed at 01:59Z): InsufficientInstanceCapacity" in error.what
    assert error.fix.startswith("Allow its NodePool more: other types, zones or capacity types in its requirements")
    assert "capacity_types" not in error.fix, "the pool has no such argument"


def test_a_quota_that_the_provisioner_meets_is_no_stock_out() -> None:
    error = missing_for_pods(waiting_for_karpenter(replace(dry(), kind="quota", message="VcpuLimitExceeded")), EARLIER)
    assert type(error) is QuotaExceeded
