"""The protocol of demand, lock, cordon and sizes, under every interleaving that Hypothesis can think of.

Two or three DAG runs, a janitor and people with pods of their own share a pool, whose groups are its own, others', or
an autoscaler's to size. All that the runs do is production code: Reconciler, decide, PoolLock, cordons, down to the
requests that the Kubernetes client sends. It is paused before each request, and goes on at once, after hours, or never.
The cloud launches late, launches what is not asked for any more, and takes any machine it likes when its size drops
below what exists. What it shows may be some seconds old. No machine's clock need be right.

The same machine has to fail on lighter protocols, or it would prove nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from airflow_gpu_provider.clouds.base import Machine
from airflow_gpu_provider.cluster.model.node import Node
from airflow_gpu_provider.cluster.model.pool_pod import Pod
from airflow_gpu_provider.scaling.apply.reconcile import Reconciler
from airflow_gpu_provider.scaling.state.demand_leases import write_demand
from airflow_gpu_provider.scaling.state.lock import PoolLock
from tests.unit.scaling.model import autoscaler
from tests.unit.scaling.model.actors import Actor
from tests.unit.scaling.model.cloud import SPECS, Kind
from tests.unit.scaling.model.course import all_are_killed, all_get_done, go_round
from tests.unit.scaling.model.runs import HardToGet
from tests.unit.scaling.model.world import TOLD_BY, World

DEEP = os.environ.get("PROTOCOL_EXAMPLES", "")
"""How many courses `make protocol` looks at, each time others."""

EXAMPLES: dict[Kind, int] = {"own groups": 120, "groups of others": 40, "autoscaler": 40}

indexes = st.integers(0, 7)
requests = st.integers(1, 40)
wrong_by = st.sampled_from([0.0, 0.0, 40.0, -40.0, 1500.0, -1500.0])


def _launch_begins(world: World, index: int) -> None:
    world.cloud.launch_begins(_pick(list(world.cloud.asgs), index))


def _launch_ends(world: World, index: int) -> None:
    world.cloud.launch_ends(_pick(list(world.cloud.asgs), index))


def _group_takes_any_machine(world: World, index: int) -> None:
    for name in world.cloud.asgs:
        if surplus := world.cloud.surplus(name):
            world.terminate(_pick(surplus, index))


def _stock_changes(world: World, index: int) -> None:
    asg = _pick(list(world.cloud.asgs.values()), index)
    # What an owner keeps comes sooner or later, on top of what has taken its place meanwhile: that is the owner's wish.
    asg.out_of_stock = not asg.out_of_stock and not asg.keeps


def _machine_joins(world: World, index: int) -> None:
    if joining := world.joining():
        world.join(_pick(joining, index))


def _node_becomes_ready(world: World, index: int) -> None:
    if world.nodes:
        world.become_ready(_pick(list(world.nodes.values()), index))


def _scheduler_chooses(world: World, index: int) -> None:
    if pending := world.pending():
        world.choose_node(_pick(pending, index))


def _pod_is_bound(world: World, index: int) -> None:
    if world.bindings:
        world.bind(_pick(list(world.bindings), index))


def _pod_ends(world: World, index: int) -> None:
    if running := world.running():
        world.finish(_pick(running, index))


def _machine_is_lost(world: World, index: int) -> None:
    if machines := [machine for asg in world.cloud.asgs.values() for machine in asg.live]:
        world.lose(_pick(machines, index))


def _node_blinks(world: World, index: int) -> None:
    if world.nodes:
        world.blink(_pick(list(world.nodes.values()), index))


def _somebody_cordons_or_uncordons(world: World, index: int) -> None:
    if not world.uncordon_by_people() and world.nodes:
        world.cordon_by_people(_pick(list(world.nodes.values()), index))


def _everything(world: World, _: int) -> None:
    world.everything_happens()


def _somebody_creates_a_pod_without_a_lease(world: World, _: int) -> None:
    if len(world.pods) < 4:
        world.create_pod(None)


def _somebody_deletes_a_lease(world: World, index: int) -> None:
    if world.leases:
        world.undo_by_people(_pick(list(world.leases), index))


def _somebody_deletes_a_pod(world: World, index: int) -> None:
    if world.pods:
        world.delete_pod_by_people(_pick(list(world.pods.values()), index))


def _somebody_deletes_a_node(world: World, index: int) -> None:
    if world.nodes:
        world.delete_node_by_people(_pick(list(world.nodes.values()), index))


def _autoscaler_grows(world: World, index: int) -> None:
    if world.pool.is_autoscaled:
        autoscaler.grows(world, index)


def _autoscaler_begins_to_remove(world: World, index: int) -> None:
    if world.pool.is_autoscaled and (idle := world.idle()):
        autoscaler.begins_to_remove(world, _pick(idle, index))


def _autoscaler_removes(world: World, index: int) -> None:
    if tainted := world.tainted():
        autoscaler.removes(world, _pick(tainted, index))


HAPPENINGS = [
    _everything,
    _launch_begins,
    _launch_ends,
    _group_takes_any_machine,
    _stock_changes,
    _machine_joins,
    _node_becomes_ready,
    _scheduler_chooses,
    _pod_is_bound,
    _pod_ends,
    _machine_is_lost,
    _node_blinks,
    _somebody_cordons_or_uncordons,
    _somebody_creates_a_pod_without_a_lease,
    _somebody_deletes_a_lease,
    _somebody_deletes_a_pod,
    _somebody_deletes_a_node,
    _autoscaler_grows,
    _autoscaler_begins_to_remove,
    _autoscaler_removes,
]
HARD_TO_GET: list[HardToGet] = ["keep trying", "keep trying", "at least one", "all or nothing"]


@dataclass(frozen=True)
class Stall:
    """How somebody is stopped in a decision.

    Attributes:
        index: Who it is.
        pods_end: All pods end before, so that there is something to decide.
        requests: After how many requests from the decision's begin it is stopped.
        newcomer: Nodes that a run wants which starts just then; 0 for no such run.
        rounds: For how many rounds the others go on.
        pods_start: The scheduler goes on too.
        then: What it meets when it goes on; "killed": it never does.
    """

    index: int
    pods_end: bool
    requests: int
    newcomer: int
    rounds: int
    pods_start: bool
    then: str


STALLS = st.builds(
    Stall,
    index=indexes,
    pods_end=st.booleans(),
    requests=st.integers(0, 20),
    newcomer=st.sampled_from([0, 0, 1, 2]),
    rounds=st.sampled_from([0, 1, 4, 4]),
    pods_start=st.booleans(),
    then=st.sampled_from(["nothing"] * 9 + ["request lost", "answer lost", "killed"]),
)


class Protocol(RuleBasedStateMachine):
    """Everything that can happen, in any order."""

    reconciler: ClassVar[type[Reconciler]] = Reconciler
    told_by: ClassVar[Collection[str]] = TOLD_BY
    clocks_are_right: ClassVar[bool] = False
    kind: ClassVar[Kind] = "own groups"
    run_shielded: ClassVar[bool] = True  # whether it is also seen that all get done, and that nothing is left

    @initialize(
        max_nodes=st.integers(1, 3),
        runs=st.lists(st.integers(1, 2), min_size=1, max_size=2),
        crowd=st.integers(2, 3),
        end=st.sampled_from([all_get_done, all_are_killed]),
        clocks=st.tuples(wrong_by, wrong_by),
        stale=st.one_of(st.none(), st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000)),
    )
    def begin(
        self,
        max_nodes: int,
        runs: list[int],
        crowd: int,
        end: Callable[[World], None],
        clocks: tuple[float, float],
        stale: int | None,
    ) -> None:
        clocks = (0.0, 0.0) if self.clocks_are_right else clocks
        self.world = World(
            max_nodes=max_nodes,
            reconciler=self.reconciler,
            told_by=self.told_by,
            clocks=clocks,
            kind=self.kind,
            stale=stale,
        )
        self.crowd = crowd
        self.end = end
        for nodes in runs:
            self._start(nodes)

    # -- actors ----------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.world.actors.alive) < self.crowd)
    @rule(nodes=st.integers(1, 2), later=st.sampled_from([0, 60, 1200]), hard_to_get=st.sampled_from(HARD_TO_GET))
    def a_run_starts(self, nodes: int, later: int, hard_to_get: HardToGet) -> None:
        self.world.actors.advance_to(self.world.actors.time + later)
        self._start(nodes, hard_to_get)

    def _start(self, nodes: int, hard_to_get: HardToGet = "keep trying") -> None:
        if len(self.world.actors.alive) < self.crowd:
            self.world.start_run(min(nodes, self.world.pool.max_nodes), hard_to_get)

    @precondition(lambda self: self.world.actors.alive)
    @rule(index=indexes, later=st.sampled_from([0, 0, 5 * 3600, 6 * 3600]))
    def a_run_is_cleared(self, index: int, later: int) -> None:
        """Its Ensure begins again while it trains, perhaps when its time is all but over, or is over."""
        self.world.actors.advance_to(self.world.actors.time + later)
        self.world.runs[_pick(self.world.actors.alive, index).name].cleared = True

    @precondition(lambda self: self.world.actors.alive)
    @rule(index=indexes, requests=requests)
    def somebody_acts(self, index: int, requests: int) -> None:
        _acts(_pick(self.world.actors.alive, index), requests)

    @precondition(lambda self: self.world.actors.alive)
    @rule(stalls=st.lists(STALLS, min_size=1, max_size=3))
    def somebody_stalls_in_a_decision(self, stalls: list[Stall]) -> None:
        """It is stopped at any point of a change to the pool; the others go on, and then it does, or never does."""
        for stall in stalls:
            if self.world.actors.alive:
                self._stall(_pick(self.world.actors.alive, stall.index), stall)

    def _stall(self, actor: Actor, stall: Stall) -> None:
        if stall.pods_end:
            self.world.pods_end()
        before = actor.decisions
        for _ in range(60):
            if actor.alive and actor.decisions == before:
                actor.step()
        _acts(actor, stall.requests)
        self.world.actors.note(f"{actor.name} stalls; then: {stall.then}")
        if stall.then == "killed":
            actor.kill()
        elif stall.then != "nothing":
            actor.trouble = stall.then
        if stall.newcomer:
            self._start(stall.newcomer)
        for _ in range(stall.rounds):
            self._round([other for other in self.world.actors.alive if other is not actor], pods_start=stall.pods_start)
        _acts(actor, 20)

    @rule(rounds=st.integers(1, 3), pods_end=st.booleans())
    def all_goes_well(self, rounds: int, pods_end: bool) -> None:
        for _ in range(rounds):
            self._round(self.world.actors.alive, pods_end=pods_end)

    # -- the world -------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([1, 7, 16, 31, 61, 600, 3600, 6 * 3600]))
    def time_passes(self, seconds: int) -> None:
        self.world.actors.advance_to(self.world.actors.time + seconds)

    @rule(happenings=st.lists(st.sampled_from(HAPPENINGS), min_size=1, max_size=5), index=indexes)
    def the_world_goes_on(self, happenings: list[Callable[[World, int], None]], index: int) -> None:
        for happens in happenings:
            happens(self.world, index)

    # -- what holds ------------------------------------------------------------------------------------------

    @invariant()
    def never_more_than_max_nodes(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            if self.world.wrong:
                return  # that is what is to be read, not what follows from it
            if self.run_shielded:
                self.end(self.world)
            else:
                self.world.actors.advance_to(self.world.actors.time + self.world.pool.max_runtime.total_seconds())
        finally:
            note("\n".join(self.world.actors.events[-200:]))
            self.world.actors.close()

    def _round(self, actors: list[Actor], *, pods_end: bool = False, pods_start: bool = True) -> None:
        go_round(self.world, actors, pods_end=pods_end, pods_start=pods_start)


def _acts(actor: Actor, requests: int) -> None:
    for _ in range(requests):
        if actor.alive:
            actor.step()


def _pick(items: list[Any], index: int) -> Any:
    return items[index % len(items)]


def run(machine: type[Protocol], examples: int, steps: int = 40) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=not DEEP,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
            print_blob=False,
        ),
    )


@pytest.mark.timeout(0 if DEEP else 300)
@pytest.mark.parametrize("kind", SPECS)
def test_no_run_starves_no_pod_is_killed_and_nothing_is_left(kind: Kind) -> None:
    machine = type("Protocol", (Protocol,), {"kind": kind})
    run(machine, examples=int(DEEP or EXAMPLES[kind]))


class _NoLock:
    memo = ""

    def check(self) -> None:
        return

    def keep(self) -> None:
        return


class _WithoutLock(Reconciler):
    def _lock(self) -> Any:
        return nullcontext(_NoLock())


class _NeverChecking(PoolLock):
    def check(self) -> None:
        return


class _WithoutChecks(Reconciler):
    """Takes the lock, but does not check before its writes whether it still has it."""

    def _lock(self) -> PoolLock:
        return _NeverChecking(self.api, self.pool.name, self.holder, clock=self.clock)


class _AbsoluteSizes(Reconciler):
    """Removes a machine by a size one less: the cloud chooses which."""

    def remove_machines(self, machines: Sequence[Machine]) -> tuple[Machine, ...]:
        for machine in machines:
            (group,) = (group for group in self.platform.observe() if group.name == machine.group)
            self.platform.grow({group.name: len(group.live) - 1})
        return ()


class _WithoutAnotherLook(Reconciler):
    """Removes a machine by what it knew before the cordon."""

    def pods_on(self, nodes: Iterable[Node]) -> list[Pod]:
        return []


class _ByItsOwnClock(Reconciler):
    """Takes the clock of the machine that it runs on for the cluster's."""

    def __init__(self, *args: Any, clock: Any, **kwargs: Any) -> None:
        super().__init__(*args, clock=clock._local, **kwargs)


class _LeaseFirst(Reconciler):
    """Writes demand before the switch is moved for it."""

    def want(self, key: Any, nodes: int, until: Any) -> Any:
        from airflow_gpu_provider.scaling.apply.reconcile import _lease

        with self._lock() as lock:
            write_demand(self.api, _lease(self.snapshot(), key, nodes, until), check=lock.check)
        return super().want(key, nodes, until)


class _WithoutSwitch(Reconciler):
    """Lets groups grow that nothing ends when everybody is dead."""

    def _lock(self) -> Any:
        self.platform.schedule_scale_to_zero = lambda groups, at: None  # type: ignore[method-assign]
        return super()._lock()


LIGHTER: dict[str, dict[str, Any]] = {
    "no lock": {"reconciler": _WithoutLock},
    "no check before a write": {"reconciler": _WithoutChecks},
    "absolute sizes": {"reconciler": _AbsoluteSizes},
    "no second look after the cordon": {"reconciler": _WithoutAnotherLook},
    "each by its own clock": {"reconciler": _ByItsOwnClock, "clocks_are_right": False},
    "the lease before the switch": {"reconciler": _LeaseFirst},
    "no switch": {"reconciler": _WithoutSwitch},
    "installations are not told apart": {"told_by": ("block",)},
    "blocks are not told apart": {"told_by": ("installation",)},
}


@pytest.mark.parametrize("lighter", LIGHTER.values(), ids=LIGHTER)
def test_a_lighter_protocol_fails(lighter: dict[str, Any]) -> None:
    machine = type("Lighter", (Protocol,), {"run_shielded": False, "clocks_are_right": True, **lighter})
    with pytest.raises(AssertionError, match=r"goes|taken|more than max_nodes|fires|switch"):
        run(machine, examples=2000)


@pytest.mark.parametrize("other", ["before", "after"])
def test_a_crash_before_any_request_of_a_run_s_life_leaves_nothing_and_starves_nobody(other: str) -> None:
    """One run of two nodes is killed before its n-th request, for every n; another wants one of the three nodes."""
    for requests in range(1000):
        world = World(max_nodes=3)
        world.start_run(nodes=2)
        (doomed,) = world.actors.all
        if other == "before":
            world.start_run(nodes=1)
        for _ in range(requests):
            if not doomed.alive:
                break
            if max(doomed.wakes_at, world.actors.time) >= world.actors.time + 5:
                go_round(world, [actor for actor in world.actors.alive if actor is not doomed], pods_end=True)
            doomed.step()
        if not doomed.alive:
            assert requests > 50
            return
        doomed.kill()
        if other == "after":
            world.start_run(nodes=1)
        all_get_done(world)
        world.actors.close()
    raise AssertionError("the run does not end")


def test_a_machine_may_go_for_an_overdue_pod_that_ends_between_the_decision_and_the_removal() -> None:
    """It is wanted by then, and is replaced: before the removal pods are looked for that came, not those that ended."""
    world = World(max_nodes=1)
    world.start_run(nodes=1)
    world.start_run(nodes=1)
    late, other = world.actors.all
    while not world.running():
        go_round(world, [late])
    late.kill()
    world.actors.advance_to(world.actors.time + world.pool.max_runtime.total_seconds())
    while not any(node["spec"].get("unschedulable") for node in world.nodes.values()):
        other.step()
    world.pods_end()
    world.remove_pods()  # its run has what came of it, and deletes it
    while "machine i-1 goes" not in world.actors.events[-1]:
        other.step()
    all_get_done(world)
    world.actors.close()
