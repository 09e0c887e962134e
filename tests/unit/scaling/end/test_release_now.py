"""Nodes that no ScaleDownSensor comes for: who waits for what, for how long, and what the log says of the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest

from airflow_gpu_provider.errors import CloudError, PoolNotEnsured
from airflow_gpu_provider.scaling.apply.reconcile import Reconciler
from airflow_gpu_provider.scaling.apply.writes import Outcome
from airflow_gpu_provider.scaling.decide.decisions import decide
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot
from airflow_gpu_provider.scaling.end import release_now as module
from airflow_gpu_provider.scaling.end.release_now import check_nodes_can_come, release_now
from tests.unit.scaling.pools import EARLIER, NOW, A, key, machine, pod, pool, snapshot

ENDING = {"delete_at": NOW + timedelta(seconds=30), "run": "run"}


class Looks:
    """Stands for the pool's Reconciler: each look finds the next snapshot, the last one again and again."""

    def __init__(self, snapshots: Sequence[PoolSnapshot]) -> None:
        self.clock = self
        self.count = 0
        self.said: list[str] = []
        self._snapshots = snapshots
        self._passed = timedelta(0)

    def now(self) -> Any:
        return NOW + self._passed

    def sleep(self, seconds: float) -> None:
        self._passed += timedelta(seconds=seconds)

    def delete_demand_and_reconcile(self, _: Any) -> Outcome:
        found = replace(self._snapshots[min(self.count, len(self._snapshots) - 1)], now=self.now())
        self.count += 1
        decision = decide(found)
        return Outcome(snapshot=found, decision=decision, log_lines=decision.notes)


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Looks]:
    def release(*snapshots: PoolSnapshot, within: timedelta | None = None) -> Looks:
        looks = Looks(snapshots)
        monkeypatch.setattr(module.time, "sleep", looks.sleep)
        release_now(cast("Reconciler", looks), key("run"), own={"mine"}, report=looks.said.append, within=within)
        return looks

    return release


def test_what_is_being_launched_when_nobody_wants_it_any_more_is_waited_for(look: Callable[..., Looks]) -> None:
    """A size without a machine yet, then a machine that AWS does not end yet, then one that goes."""
    asked_for = snapshot(train_a_g6_xlarge={"desired": 1, "launching": True})
    assert look(asked_for, snapshot(machine(1, state="pending")), snapshot(machine(1)), snapshot()).count == 4


def test_its_own_pod_is_waited_for_and_then_its_node_goes(look: Callable[..., Looks]) -> None:
    ending = snapshot(machine(1), pods=(pod("p", on=1, uid="mine", **ENDING),))
    looks = look(ending, ending, snapshot(machine(1)), snapshot())
    assert looks.count == 4
    assert looks.said == [
        f"[0 s] node node-1 of {A} is kept: pod default/p holds it",
        "[0 s] node node-1 is released when pod default/p, which is deleted, has ended;"
        f" the switch of {A} ends the node at 2026-03-01 02:16Z at the latest",
        f"[4 s] releasing node node-1 of {A}: no run wants it, and no pod holds it",
    ]


def test_pods_of_the_run_s_other_tasks_are_theirs_to_wait_for(look: Callable[..., Looks]) -> None:
    assert look(snapshot(machine(1), pods=(pod("p", on=1, uid="another task's", **ENDING),))).count == 1


def test_nothing_is_waited_for_where_the_node_stays_anyway(look: Callable[..., Looks]) -> None:
    mine = pod("p", on=1, uid="mine", **ENDING)
    theirs = pod("theirs", on=1, gpus=0)
    assert look(snapshot(machine(1), pods=(mine, theirs))).count == 1
    assert look(snapshot(machine(1), pods=(mine,), spec=pool(min_nodes=1))).count == 1
    given = {"when_idle": "keep", "has_switch": False, "switch_at": None}
    assert look(snapshot(machine(1), pods=(mine,), train_a_g6_xlarge=given)).count == 1


def test_a_pod_that_does_not_end_is_given_up_a_minute_after_its_grace_period(look: Callable[..., Looks]) -> None:
    looks = look(snapshot(machine(1), pods=(pod("p", on=1, uid="mine", **ENDING),)))
    assert looks.now() - NOW == timedelta(seconds=90)
    assert looks.said[-1] == "stopped waiting for pool train"


def test_who_has_no_time_does_not_wait_for_the_grace_period(look: Callable[..., Looks]) -> None:
    ending = snapshot(machine(1), pods=(pod("p", on=1, uid="mine", **ENDING),))
    second = timedelta(seconds=1)
    assert look(ending, within=second).now() - NOW == second
    assert look(ending, snapshot(machine(1)), within=second).said[-2].endswith("no pod holds it")


def test_a_kept_pod_is_named_with_its_node_and_its_end(look: Callable[..., Looks]) -> None:
    kept = pod("p", on=1, uid="mine", run="run", active_deadline=timedelta(hours=2), started_at=EARLIER)
    looks = look(snapshot(machine(1), pods=(kept,)))
    assert looks.count == 1
    assert looks.said == [
        "[0 s] pod default/p keeps running, and node node-1 stays for it, until 2026-03-01 03:00Z at the latest;"
        " `kubectl -n default delete pod p` ends it;"
        f" the switch of {A} ends the node at 2026-03-01 03:15Z at the latest",
    ]


def test_where_there_is_no_switch_the_next_look_is_named(look: Callable[..., Looks]) -> None:
    without = {"has_switch": False, "switch_at": None}
    looks = look(
        snapshot(machine(1), pods=(pod("p", on=1, uid="mine", **ENDING),), train_a_g6_xlarge=without), snapshot()
    )
    assert looks.said[1].endswith("the next run that uses the pool, or `airflow gpu reap`, removes the node")


def test_a_pool_that_nobody_has_prepared_is_refused_at_once() -> None:
    spec = pool()
    with pytest.raises(PoolNotEnsured, match=r"Pool train: it has no node group.*EnsureGpuPoolOperator.*gpu_nodes"):
        check_nodes_can_come(spec, tuple)
    group = snapshot().groups[0]
    with pytest.raises(PoolNotEnsured, match="no node has its label"):
        check_nodes_can_come(spec, lambda: (replace(group, when_idle="keep"),))


def test_a_pool_that_has_or_can_get_a_node_is_not_refused() -> None:
    group = snapshot().groups[0]
    there = snapshot(machine(1)).groups[0]
    for groups in ((group,), (replace(group, when_idle="keep", provisioner="Karpenter"),)):
        check_nodes_can_come(pool(), lambda groups=groups: groups)
    check_nodes_can_come(pool(), lambda: (replace(there, when_idle="keep"),))


def test_a_cloud_that_does_not_answer_refuses_nothing() -> None:
    def away() -> Any:
        raise CloudError("Throttled.")

    check_nodes_can_come(pool(), away)
