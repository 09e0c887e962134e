"""Night: a pool of one group in the model's world, and what runs and people do with it, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.scaling.apply.reconcile import Reconciler
from airflow_gpu_provider.scaling.apply.writes import Outcome
from airflow_gpu_provider.scaling.decide.snapshot import usable_nodes
from tests.unit.scaling.model.course import go_round
from tests.unit.scaling.model.world import World

ROUNDS = 80
"""Of 15 seconds, in which something has to be so."""


class Night:
    """`fields` are those of the pool's spec."""

    def __init__(self, max_nodes: int = 2, **fields: Any) -> None:
        self.world = World(max_nodes=max_nodes, zones=("us-west-2a",), **fields)
        self.pool = self.world.pool
        self.api: Any = self.world.api
        self.lead = self.reconciler("lead")

    def reconciler(self, holder: str) -> Reconciler:
        return self.world.reconciler(holder, 0)

    def key(self, run_id: str, installation: str = "tests") -> DemandKey:
        return DemandKey(installation=installation, dag_id="dag", run_id=run_id, pool=self.pool.name)

    def want(self, run_id: str, nodes: int = 1, seconds: float = 3600) -> Outcome:
        return self.want_with(self.lead, self.key(run_id), nodes, seconds)

    def want_with(self, reconciler: Reconciler, key: DemandKey, nodes: int = 1, seconds: float = 3600) -> Outcome:
        until = self.world.ends[key.hash] = self.world.now + timedelta(seconds=seconds)
        return self.ask(reconciler, key, nodes, until)

    def ask(
        self, reconciler: Reconciler, key: DemandKey, nodes: int, until: datetime, *, max_cost: float | None = None
    ) -> Outcome:
        """Want nodes as Ensure does: with what they cost, and with how long the money lasts."""
        listed = reconciler.platform.list_prices()
        budget = None if max_cost is None else reconciler.budget(key, nodes, max_cost, listed=listed)
        return reconciler.want(key, nodes, until, listed=listed, budget=budget)

    def until(self, is_so: Callable[[Outcome], bool]) -> Outcome:
        """Reconcile until something is so."""
        for _ in range(ROUNDS):
            outcome = self.lead.reconcile()
            if is_so(outcome):
                return outcome
            go_round(self.world, [])
        raise AssertionError("\n".join(self.world.actors.events))

    def until_usable(self, nodes: int) -> Outcome:
        return self.until(lambda outcome: len(usable_nodes(outcome.snapshot)) == nodes)

    def until_gone(self) -> None:
        self.until(lambda outcome: not outcome.snapshot.nodes and not machines(outcome))

    def pod(self, *, on: str | None = None, run: DemandKey | None = None) -> str:
        """Create a GPU pod, somebody's own or a run's, that runs until it is deleted; returns its name."""
        name = self.world.create_pod(run.hash if run else None)
        if on:
            self.world.change_pod(self.world.pods[name], {"spec": {"nodeName": on}, "status": {"phase": "Running"}})
        return name


def machines(outcome: Outcome) -> list[str]:
    return [machine.id for group in outcome.snapshot.groups for machine in group.live]
