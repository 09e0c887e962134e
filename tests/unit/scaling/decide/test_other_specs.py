"""One pool name with two specs: another DAG's is refused, and a machine that a run cannot use does not count for it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_gpu_provider import EksGpuPool, GkeGpuPool, KubernetesGpuPool
from airflow_gpu_provider.errors import PoolDrift
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.allowed import Allowed
from airflow_gpu_provider.scaling.decide.decisions import decide
from airflow_gpu_provider.scaling.decide.other_specs import allowed_types, can_get_node, check_one_spec
from airflow_gpu_provider.scaling.decide.snapshot import usable_nodes, wanted_until
from airflow_gpu_provider.scaling.state.demand import DemandLease
from tests.unit.scaling.pools import LATER, NOW, A, key, lease, machine, node, pod, pool, snapshot

OURS = replace(key("tonight"), dag_id="ours")
GKE = GkeGpuPool(
    name="train",
    project_id="ml-project",
    location="us-central1",
    cluster_name="ml",
    machine_types=["g2-standard-4"],
    max_nodes=1,
)
LAB = KubernetesGpuPool(name="train", node_selector_labels={"lab": "a"})
OF_OTHERS = EksGpuPool(
    name="train", cluster_name="ml", region="us-west-2", max_nodes=1, manage="scale", node_groups=["x"]
)


def theirs(spec: GpuPool, **fields: Any) -> DemandLease:
    return lease("theirs", allowed=spec.allowed, **fields)


@pytest.mark.parametrize(
    ("spec", "other", "difference"),
    [
        (pool(), {"instance_types": ["g6e.xlarge"]}, "machine types g6e.xlarge instead of g6.xlarge"),
        (
            pool(),
            {"instance_types": ["g6e.xlarge", "g6.xlarge"]},
            "machine types g6.xlarge, g6e.xlarge instead of g6.xlarge",
        ),
        (pool(), {"capacity_types": ["SPOT"]}, "capacity types SPOT instead of ON_DEMAND"),
        (pool(), {"zones": ["us-west-2b"]}, "zones us-west-2b instead of any"),
        (pool(node_labels={"team": "a"}), {"node_labels": {"team": "b"}}, "node labels team=b instead of team=a"),
        (pool(node_labels={"team": "a"}), {"node_labels": {}}, "node labels none instead of team=a"),
        (GKE, {"machine_types": ["g2-standard-8"]}, "machine types g2-standard-8 instead of g2-standard-4"),
        (GKE, {"node_locations": ["us-central1-a"]}, "zones us-central1-a instead of any"),
        (OF_OTHERS, {"instance_types": ["g6.xlarge"]}, "machine types g6.xlarge instead of any"),
        (LAB, {"node_selector_labels": {"lab": "b"}}, "node labels lab=b instead of lab=a"),
    ],
)
def test_while_another_dag_s_demand_allows_other_nodes_a_run_is_refused(
    spec: GpuPool, other: dict[str, Any], difference: str
) -> None:
    with pytest.raises(PoolDrift, match=r"DAG dag wants nodes of pool train \(run theirs, until .*Z\)") as refused:
        check_one_spec(spec, OURS, [theirs(replace(spec, **other))])
    assert refused.value.details["differences"] == [difference]
    assert difference in refused.value.what


@pytest.mark.parametrize(
    ("spec", "other"),
    [
        (pool(instance_types=("g6.xlarge", "g6e.xlarge")), {"instance_types": ("g6e.xlarge", "g6.xlarge")}),
        (pool(), {"max_runtime": timedelta(hours=1), "price_per_hour": 2.0}),
        (replace(GKE, capacity_types=["SPOT"]), {"capacity_types": ["PREEMPTIBLE"]}),
        (OF_OTHERS, {"node_groups": ["y"]}),
    ],
)
def test_specs_that_allow_the_same_nodes_are_one(spec: GpuPool, other: dict[str, Any]) -> None:
    check_one_spec(spec, OURS, [theirs(replace(spec, **other))])


def test_a_lease_without_the_record_and_the_dag_s_own_are_no_others() -> None:
    other = pool(instance_types=["g6e.xlarge"])
    check_one_spec(pool(), OURS, [lease("theirs")])
    check_one_spec(pool(), OURS, [replace(theirs(other), key=replace(OURS, run_id="yesterday"))])
    elsewhere = replace(theirs(other), key=replace(OURS, installation="another"))
    with pytest.raises(PoolDrift, match="DAG ours of Airflow another wants"):
        check_one_spec(pool(), OURS, [elsewhere])


@pytest.mark.parametrize("spec", [pool(zones=["us-west-2a"], node_labels={"a": "b"}), GKE, LAB, OF_OTHERS])
def test_the_record_is_kept_with_the_demand(spec: GpuPool) -> None:
    kept = theirs(spec)
    assert DemandLease.parse(kept.manifest()) == kept


@pytest.mark.parametrize("text", ["x", "[]", '{"types": "g6"}', '{"types": [1]}', '{"labels": []}', '{"zones": {}}'])
def test_a_record_that_somebody_has_edited_counts_as_none(text: str) -> None:
    raw = theirs(pool()).manifest()
    raw["metadata"]["annotations"]["airflow-gpu-provider/allowed"] = text
    found = DemandLease.parse(raw)
    assert (found.allowed, [each.what for each in found.unreadable]) == (None, ["allowed"])


LARGER = pool(instance_types=["g6e.xlarge"])
ON_A = "train-a-g6e-xlarge"


def changed(*pods: Any, recorded: Allowed | None = LARGER.allowed, **fields: Any) -> Any:
    """The DAG's file named g6.xlarge when the machine came, and names g6e.xlarge now."""
    both = pool(instance_types=["g6e.xlarge", "g6.xlarge"])
    there = snapshot(machine(1, A), leases=(lease(allowed=recorded),), pods=pods, spec=both, **fields)
    return replace(there, nodes=(node(1, instance_type="g6.xlarge"),))


def test_a_machine_that_the_run_cannot_use_any_more_is_replaced() -> None:
    seen = changed()
    decision = decide(seen)
    assert usable_nodes(seen) == ()
    assert (dict(decision.grow), [each.id for each in decision.release]) == ({ON_A: 1}, ["i-1"])


def test_it_stays_as_long_as_a_pod_runs_there() -> None:
    decision = decide(changed(pod("p", on=1, run="run")))
    assert (decision.grow, decision.release) == ({}, ())


@pytest.mark.parametrize("recorded", [None, pool().allowed, OF_OTHERS.allowed])
def test_it_stays_for_demand_that_allows_it(recorded: Allowed | None) -> None:
    decision = decide(changed(recorded=recorded))
    assert (decision.grow, decision.release) == ({}, ())


def test_no_machine_of_another_type_is_launched_by_a_process_that_has_the_old_file() -> None:
    old = snapshot(leases=(lease(allowed=LARGER.allowed),))
    assert decide(old).grow == {}


def test_a_pod_without_demand_may_wait_for_any_machine_of_the_pool() -> None:
    seen = changed(pod("p", created_at=NOW))
    assert decide(seen).release == ()


OTHERS = frozenset(["g6e.xlarge"])


@pytest.mark.parametrize("scaling", ["direct", "autoscaler"])
def test_a_pod_that_the_pool_has_no_machine_for_holds_none_and_brings_none(scaling: Any) -> None:
    """Of a task without a block, whose spec of the pool is another DAG's no more."""
    waiting = pod("p", machine_types=OTHERS)
    seen = snapshot(machine(1, A), pods=(waiting,), spec=pool(scaling=scaling))
    decision = decide(seen)
    assert (decision.grow, [each.id for each in decision.release], wanted_until(seen)) == ({}, ["i-1"], None)
    wanted = replace(seen, leases=(lease(allowed=pool().allowed),))
    assert (decide(wanted).grow, decide(wanted).release, wanted_until(wanted)) == ({}, (), LATER)


def test_a_waiting_pod_keeps_no_machine_of_another_type_and_gets_one_of_its_own() -> None:
    decision = decide(replace(changed(pod("p", machine_types=OTHERS)), leases=()))
    assert (dict(decision.grow), [each.id for each in decision.release]) == ({ON_A: 1}, ["i-1"])


@pytest.mark.parametrize("types", [frozenset(), frozenset(["g6.xlarge"]), frozenset(["g6.xlarge", "p5.48xlarge"])])
def test_a_waiting_pod_keeps_the_machine_that_it_can_run_on(types: frozenset[str]) -> None:
    assert decide(replace(changed(pod("p", machine_types=types)), leases=())).release == ()


def test_in_a_pool_that_names_no_types_every_waiting_pod_is_demand() -> None:
    assert can_get_node(LAB, pod("p", machine_types=OTHERS), ["g6.xlarge"])
    assert allowed_types(LAB, (), [pod("p", machine_types=OTHERS)]) == frozenset()
