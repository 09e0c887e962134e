"""The protocol of demand, lock, cordon and sizes, under every interleaving that Hypothesis can think of.

Two or three DAG runs, a janitor and people with pods of their own share a pool. All that the runs do is production
code: Reconciler, decide, PoolLock, cordons, down to the requests that the Kubernetes client sends. It is paused
before each request, and goes on at once, after hours, or never. The cloud launches late, launches what is not
asked for any more, and takes any machine it likes when its size drops below what exists.

The same machine has to fail on lighter protocols, or it would prove nothing.
"""

from __future__ import annotations

from contextlib import nullcontext
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

from airflow_gpu_provider.cluster.demand import write_demand
from airflow_gpu_provider.cluster.lock import PoolLock
from airflow_gpu_provider.cluster.nodes import Node
from airflow_gpu_provider.cluster.pods import Pod
from airflow_gpu_provider.platforms.base import Machine
from airflow_gpu_provider.scaling.reconcile import Reconciler
from tests.unit.scaling.model.actors import Actor
from tests.unit.scaling.model.world import World

ROUNDS = 400
"""Rounds of 15 seconds in which everybody who is left has to be done, when nothing goes wrong any more."""

indexes = st.integers(0, 7)
requests = st.integers(1, 40)


class Protocol(RuleBasedStateMachine):
    """Everything that can happen, in any order."""

    reconciler: ClassVar[type[Reconciler]] = Reconciler

    @initialize(max_nodes=st.integers(1, 3), runs=st.lists(st.integers(1, 2), max_size=3))
    def begin(self, max_nodes: int, runs: list[int]) -> None:
        self.world = World(max_nodes=max_nodes, reconciler=self.reconciler)
        for nodes in runs:
            self.a_run_starts(nodes)

    # -- actors ----------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.world.actors.all) < 4)
    @rule(nodes=st.integers(1, 2))
    def a_run_starts(self, nodes: int) -> None:
        name = f"run-{len(self.world.actors.all)}"
        self.world.start_run(name, min(nodes, self.world.pool.max_nodes))

    @precondition(lambda self: self.world.actors.alive)
    @rule(index=indexes, requests=requests)
    def somebody_acts(self, index: int, requests: int) -> None:
        _acts(_pick(self.world.actors.alive, index), requests)

    @precondition(lambda self: self.world.actors.alive)
    @rule(index=indexes, requests=requests, rounds=st.integers(1, 5))
    def somebody_stalls_and_goes_on(self, index: int, requests: int, rounds: int) -> None:
        """It is stopped between any two of its requests; the others go on, and then it does, as if nothing was."""
        actor = _pick(self.world.actors.alive, index)
        _acts(actor, requests)
        for _ in range(rounds):
            self._round([other for other in self.world.actors.alive if other is not actor])
        _acts(actor, 20)

    @precondition(lambda self: self.world.actors.alive)
    @rule(index=indexes)
    def somebody_is_killed(self, index: int) -> None:
        actor = _pick(self.world.actors.alive, index)
        self.world.actors.note(f"{actor.name} is killed")
        actor.kill()

    @rule(rounds=st.integers(1, 3))
    def all_goes_well(self, rounds: int) -> None:
        for _ in range(rounds):
            self._round(self.world.actors.alive)

    # -- the world -------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([1, 7, 16, 31, 61, 600, 6 * 3600, 6 * 3600 + 900]))
    def time_passes(self, seconds: int) -> None:
        self.world.actors.advance_to(self.world.actors.time + seconds)

    @rule()
    def everything_happens(self) -> None:
        self.world.everything_happens()

    @rule(index=indexes, which=indexes, what=st.sampled_from(["launch begins", "launch ends", "machine taken"]))
    def a_group_acts(self, index: int, which: int, what: str) -> None:
        cloud = self.world.cloud
        name = _pick(list(cloud.asgs), index)
        if what == "launch begins":
            cloud.launch_begins(name)
        elif what == "launch ends":
            cloud.launch_ends(name)
        elif surplus := cloud.surplus(name):
            self.world.terminate(_pick(surplus, which))

    @rule(index=indexes, dry=st.booleans())
    def stock_changes(self, index: int, dry: bool) -> None:
        _pick(list(self.world.cloud.asgs.values()), index).out_of_stock = dry

    @rule(index=indexes)
    def a_machine_joins(self, index: int) -> None:
        if joining := self.world.joining():
            self.world.join(_pick(joining, index))
        elif self.world.api.nodes:
            self.world.become_ready(_pick(list(self.world.api.nodes.values()), index))

    @precondition(lambda self: len(self.world.api.pods) < 4)
    @rule()
    def somebody_creates_a_pod_without_a_lease(self) -> None:
        self.world.create_pod(None)

    @rule(index=indexes)
    def the_scheduler_acts(self, index: int) -> None:
        if self.world.bindings:
            self.world.bind(_pick(list(self.world.bindings), index))
        elif pending := self.world.pending():
            self.world.choose_node(_pick(pending, index))

    @precondition(lambda self: self.world.running())
    @rule(index=indexes)
    def a_pod_ends(self, index: int) -> None:
        self.world.finish(_pick(self.world.running(), index))

    # -- what holds ------------------------------------------------------------------------------------------

    @invariant()
    def never_more_than_max_nodes(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self._everybody_gets_done()
            self._nothing_is_left()
        finally:
            note("\n".join(self.world.actors.events[-200:]))
            self.world.actors.close()

    def _everybody_gets_done(self) -> None:
        """From here on nothing goes wrong: whoever is alive must get its nodes, and be done."""
        world = self.world
        for asg in world.cloud.asgs.values():
            asg.out_of_stock = False
        for _ in range(ROUNDS):
            if not world.actors.alive:
                return
            self._round(world.actors.alive, pods_end=True)
        world.require(False, f"{[actor.name for actor in world.actors.alive]} starve")

    def _nothing_is_left(self) -> None:
        """When all is over, the janitor ends what the dead have left."""
        world = self.world
        world.api.pods = {name: raw for name, raw in world.api.pods.items() if Pod.parse(raw).run}
        world.actors.advance_to(world.actors.time + world.pool.max_runtime.total_seconds() + 1)
        world.start_janitor()
        for _ in range(60):  # what has ended and is never collected holds its node for ten minutes
            self._round(world.actors.alive)
        left = [machine for asg in world.cloud.asgs.values() for machine in asg.machines]
        desired = [asg.desired for asg in world.cloud.asgs.values()]
        world.require(not left and not any(desired), f"machines {left} and sizes {desired} are left")

    def _round(self, actors: list[Actor], *, pods_end: bool = False) -> None:
        """Fifteen seconds in which these actors, the cloud and the cluster do all that they have to do."""
        world = self.world
        ends = world.actors.time + 15
        world.everything_happens()
        for pod in world.running() if pods_end else ():
            world.finish(pod)
        for actor in actors:
            while actor.alive and max(actor.wakes_at, world.actors.time) < ends:
                actor.step()
        world.actors.advance_to(ends)
        world.check()


def _acts(actor: Actor, requests: int) -> None:
    for _ in range(requests):
        if actor.alive:
            actor.step()


def _pick(items: list[Any], index: int) -> Any:
    return items[index % len(items)]


def run(machine: type[Protocol], examples: int, steps: int = 60) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
            print_blob=False,
        ),
    )


def test_no_run_starves_no_pod_is_killed_and_nothing_is_left() -> None:
    run(Protocol, examples=300)


class _NoLock:
    def check(self) -> None:
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
        return _NeverChecking(self.api, self.pool.name, self.holder, clock=self._clock)


class _AbsoluteSizes(Reconciler):
    """Removes a machine by a size one less: the cloud chooses which."""

    def _remove(self, machine: Machine) -> None:
        (group,) = (group for group in self.platform.observe() if group.name == machine.group)
        self.platform.grow({group.name: len(group.live) - 1})


class _WithoutAnotherLook(Reconciler):
    """Removes a machine by what it knew before the cordon."""

    def _pods_now(self, node: Node) -> list[Pod]:
        return []


class _LeaseFirst(Reconciler):
    """Writes demand before the switch is moved for it."""

    def want(self, key: Any, nodes: int, until: Any) -> Any:
        from airflow_gpu_provider.scaling.reconcile import _lease

        with self._lock():
            write_demand(self.api, _lease(self.snapshot(), key, nodes, until))
        return super().want(key, nodes, until)


LIGHTER = {
    "no lock": _WithoutLock,
    "no check before a write": _WithoutChecks,
    "absolute sizes": _AbsoluteSizes,
    "no second look after the cordon": _WithoutAnotherLook,
    "the lease before the switch": _LeaseFirst,
}


@pytest.mark.parametrize("lighter", LIGHTER.values(), ids=LIGHTER)
def test_a_lighter_protocol_fails(lighter: type[Reconciler]) -> None:
    machine = type("Lighter", (Protocol,), {"reconciler": lighter})
    with pytest.raises(AssertionError, match=r"goes|starve|left|taken|more than max_nodes|fires"):
        run(machine, examples=2000)
