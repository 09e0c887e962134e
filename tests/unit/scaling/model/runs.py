"""Run: what the operators of one block of a DAG run do to a pool, request by request: Ensure, its pods, ScaleDown."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from airflow_gpu_provider.cluster.model.pool_pod import Pod
from airflow_gpu_provider.cluster.model.uncollected import UNCOLLECTED
from airflow_gpu_provider.errors import GpuError, NodesNotReady
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.scaling.apply.reconcile import Reconciler
from airflow_gpu_provider.scaling.apply.writes import Outcome
from airflow_gpu_provider.scaling.decide.decisions import decide
from airflow_gpu_provider.scaling.decide.scarce_capacity import DemandChange
from airflow_gpu_provider.scaling.wait.nodes_wait import NodesWait
from airflow_gpu_provider.scaling.wait.records import Progress
from tests.fakes.objects import Raw

if TYPE_CHECKING:
    from tests.unit.scaling.model.actors import Actors
    from tests.unit.scaling.model.world import World

HardToGet = Literal["keep trying", "at least one", "all or nothing"]
"""What a run does when not all of its nodes come."""

RIGHT_TO = timedelta(seconds=3)
"""How right an actor's idea of the cluster's time is: an answer takes 5 seconds at most, and has no fractions."""

_PATIENCE = timedelta(minutes=10)


class Run:
    """One block of a DAG run.

    Attributes:
        cleared: People cleared its Ensure while it trains: its time begins again.
    """

    def __init__(
        self, world: World, key: DemandKey, reconciler: Reconciler, nodes: int, hard_to_get: HardToGet
    ) -> None:
        self.cleared = False
        self._world = world
        self._nodes = nodes
        self._key = key
        self._reconciler = reconciler
        self._hard_to_get = hard_to_get
        self._clock = world.actors.clock

    def work(self) -> None:
        if got := self._ensure():
            self._train(got)
        self._scale_down()

    # -- Ensure ----------------------------------------------------------------------------------------------

    def _ensure(self) -> int:
        """Return how many nodes the run goes on with; 0: none."""
        outcome = self._want()
        wait = NodesWait(
            key=self._key,
            wait_for="groups" if self._world.pool.nodes_come_with_pods else "ready",
            started=outcome.snapshot.now,
            deadline=outcome.snapshot.now + self._world.pool.max_runtime,
            nodes=self._nodes,
            at_least=1 if self._hard_to_get == "at least one" else None,
            all_or_nothing=self._hard_to_get == "all or nothing",
            patience=None if self._hard_to_get == "keep trying" else _PATIENCE,
        )
        while True:
            progress = self._step(wait, outcome)
            if progress.done:
                self._world.actors.note("has its nodes")
                return int((progress.result or {})["got"])
            if progress.error:
                return 0
            if progress.ask is None:
                self._clock.sleep(15)
            outcome = patiently(self._world, lambda ask=progress.ask: self._look(ask))  # type: ignore[misc]

    def _want(self) -> Outcome:
        """Write demand. Until it is written, the end of what was written before holds."""
        return patiently(self._world, self._write_demand)

    def _write_demand(self) -> Outcome:
        until = self._reconciler.clock.now() + self._world.pool.max_runtime
        self._world.ends.setdefault(self._key.hash, until)
        outcome = self._reconciler.want(self._key, self._nodes, until)
        self._world.ends[self._key.hash] = until
        return outcome

    def _look(self, ask: DemandChange | None) -> Outcome:
        outcome = self._reconciler.amend(ask) if ask else self._reconciler.reconcile()
        if ask and ask.after in outcome.snapshot.leases:
            self._world.ends[self._key.hash] = ask.after.until
        return outcome

    def _step(self, wait: NodesWait, outcome: Outcome) -> Progress:
        try:
            return wait.step(outcome.snapshot)
        except NodesNotReady as error:
            self._require_mine("demand")
            return Progress(error=error)

    # -- its pods --------------------------------------------------------------------------------------------

    def _train(self, number: int) -> None:
        self._world.actors.pause()
        pods = [self._world.create_pod(self._key.hash) for _ in range(number)]
        while raws := [raw for name, raw in self._world.pods.items() if name in pods]:
            if all(Pod.parse(raw).finished for raw in raws):
                self._collect(raws)
                return
            if self._clock.now() >= self._world.ends[self._key.hash]:
                return  # pods that have not started by now never will
            self._clock.sleep(15)
            again, self.cleared = self.cleared, False
            if again:
                old_end = self._world.ends[self._key.hash]
                self._want()
                if self._is_over(old_end):
                    self._world.lost_pods.update(pods)  # they may have gone before the new end was written
            else:
                patiently(self._world, self._reconciler.reconcile)
        if not self._world.lost_pods & set(pods):
            self._require_mine("pods")

    def _collect(self, raws: list[Raw]) -> None:
        for raw in raws:
            self._world.actors.pause()
            if raw["metadata"]["name"] in self._world.pods:
                self._world.change_pod(raw, {"metadata": {"annotations": {UNCOLLECTED: None}}})

    def _require_mine(self, what: str) -> None:
        is_over = self._is_over(self._world.ends[self._key.hash])
        is_undone = self._key.lease_name in self._world.undone
        self._world.require(is_over or is_undone, f"the run's {what} were taken from it")

    def _is_over(self, end: datetime) -> bool:
        """Say whether some actor may take it for over."""
        return self._world.now + RIGHT_TO >= end

    # -- ScaleDown -------------------------------------------------------------------------------------------

    def _scale_down(self) -> None:
        while True:
            outcome = patiently(self._world, self._give_up)
            mine = [pod for pod in outcome.snapshot.pods if pod.run == self._key.hash and not pod.finished]
            if not mine and decide(outcome.snapshot).is_empty:
                self._world.require_no_size_without_demand()
                return
            self._clock.sleep(5)

    def _give_up(self) -> Outcome:
        self._reconciler.delete_pods(self._reconciler.run_pods(self._key))
        return self._reconciler.delete_demand_and_reconcile(self._key)


def patiently(world: World, work: Callable[[], Outcome]) -> Outcome:
    """Try again, as whoever waits does, after an error that is borne until the deadline."""
    while True:
        try:
            outcome = work()
        except GpuError as error:
            if error.tolerated_for is not None:
                raise
            world.actors.note(type(error).__name__)
            world.actors.clock.sleep(5)
        else:
            for line in outcome.log_lines:
                world.actors.note(line)
            return outcome


def counting_decisions(reconciler: type[Reconciler], actors: Actors) -> type[Reconciler]:
    """Count an actor's decisions, so that it can be made to stall in the middle of one."""

    class WaitOutcome(reconciler):  # type: ignore[misc, valid-type]
        def _lock(self) -> Any:
            if actors.current:
                actors.current.decisions += 1
            return super()._lock()

    return WaitOutcome
