"""What the janitor calls a leftover: only what no live run, no other Airflow and no stranger's pod wants."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider.cluster.demand import DemandKey
from airflow_gpu_provider.scaling.janitor import Findings, look
from airflow_gpu_provider.scaling.snapshot import PoolSnapshot
from tests.unit.scaling.pools import A, key, lease, machine, pod, pool, snapshot

HERE = key("any").installation


def find(seen: PoolSnapshot, *over: str, installation: str = HERE) -> Findings:
    return look(seen, installation, lambda run: run.run_id in over)


def kinds(findings: Findings) -> list[str]:
    return [each.kind for each in findings.leftovers]


def test_a_run_that_is_over_leaves_its_lease_its_pods_and_its_machine() -> None:
    seen = snapshot(
        machine(1),
        machine(2),
        leases=(lease("dead"), lease("alive")),
        pods=(pod("of-dead", on=1, run="dead"), pod("of-alive", on=2, run="alive")),
        spec=pool(price_per_hour=0.8),
    )
    found = find(seen, "dead")
    assert kinds(found) == ["lease", "pod", "machine"]
    assert [str(each) for each in found.pods] == ["default/of-dead"]
    (gone,) = (each for each in found.leftovers if each.kind == "machine")
    assert (gone.name, gone.cost, gone.age_seconds) == (f"node node-1 of {A}", 0.8, 3600.0)
    assert kinds(find(seen)) == []


def test_the_same_ids_in_another_airflow_are_another_run() -> None:
    seen = snapshot(machine(1), leases=(lease("dead"),), pods=(pod("train", on=1, run="dead"),))
    assert kinds(find(seen, "dead", installation="another")) == []
    assert kinds(find(seen, "dead", installation="")) == []


def test_pods_without_demand_are_asked_for_by_the_run_that_they_name() -> None:
    named = pod("late", on=1, run="dead", owner=key("dead"))
    unnamed = pod("old", on=2, run="dead")
    found = find(snapshot(machine(1), machine(2), pods=(named, unnamed)), "dead")
    assert found.pods == (named,)
    assert kinds(found) == ["pod", "machine"]


def test_size_that_nobody_wants_is_told() -> None:
    seen = snapshot(leases=(lease("dead"),), train_a_g6_xlarge={"desired": 1})
    assert kinds(find(seen, "dead")) == ["lease", "size"]


def test_airflow_is_asked_once_for_each_run() -> None:
    asked: list[DemandKey] = []
    pods = tuple(pod(f"p{number}", on=1, run="one", owner=key("one")) for number in range(3))
    look(snapshot(machine(1), leases=(lease("one"),), pods=pods), HERE, lambda run: bool(asked.append(run)))
    assert asked == [key("one")]


@given(
    over=st.sets(st.sampled_from(["a", "b", "c"])),
    wants=st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(0, 2)),
    runs_on=st.dictionaries(st.integers(1, 4), st.sampled_from(["a", "b", "c", ""])),
)
def test_what_lives_keeps_its_pods_and_enough_machines(
    over: set[str], wants: dict[str, int], runs_on: dict[int, str]
) -> None:
    """Whoever is over: no pod of a living run, nor of nobody, is found, and machines enough for them stay."""
    pods = tuple(
        replace(pod(f"p{on}", on=on, run=run or None), owner=key(run) if run else None) for on, run in runs_on.items()
    )
    leases = tuple(lease(run, nodes=nodes) for run, nodes in wants.items())
    machines = tuple(machine(number) for number in range(1, 5))
    found = find(snapshot(*machines, leases=leases, pods=pods), *over)

    living = {each for each in pods if not each.owner or each.owner.run_id not in over}
    assert not living & set(found.pods)
    assert {each.key.run_id for each in found.leases} == over & set(wants)
    gone = {each.name for each in found.leftovers if each.kind == "machine"}
    assert not {f"node {each.node} of {A}" for each in living} & gone
    wanted = min(4, sum(nodes for run, nodes in wants.items() if run not in over))
    assert len(machines) - len(gone) >= wanted
