"""One cell: a night, what strikes it and when, and what became of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from gpu_sandbox.airflow_api import PATIENCE, AirflowApiError, RunStatus
from tests.airflow.chaos.clouds import NAMES, Platform, Use
from tests.airflow.chaos.faults import FAULTS, Fault, Promise
from tests.airflow.chaos.moments import MOMENTS, Look, Moment
from tests.airflow.chaos.pods import PodStory
from tests.airflow.chaos.world import World, insist

MAX_COST = 177.0
"""What a run with a limit may cost: 4.5 minutes of its machine, and the 25 kept back, by `World.list_price`."""

ENDED = frozenset({"success", "failed", "deleted"})


class MomentMissed(Exception):
    """The run went on so fast, or so slowly, that nobody saw the moment."""


@dataclass(frozen=True, kw_only=True)
class Strike:
    """A fault at a moment, by their names."""

    when: str
    what: str

    @property
    def moment(self) -> Moment:
        return MOMENTS[self.when]

    @property
    def fault(self) -> Fault:
        return FAULTS[self.what]

    @property
    def promise(self) -> Promise:
        """What the night owes that it meets."""
        promise = self.fault.promise_at.get(self.when, self.fault.promise)
        return promise if self.moment.keeps_pod else replace(promise, keeps_pod=False)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A night to be run: its number, the seed it was drawn by, its strikes in order, and where."""

    number: int
    seed: int
    strikes: tuple[Strike, ...]
    platform: Platform = "eks"

    @property
    def is_local(self) -> bool:
        """Whether nobody else notices."""
        return all(strike.fault.hits == "run" and not strike.moment.held for strike in self.strikes)

    @property
    def needs_scarce(self) -> bool:
        """Whether its machine is of the type that is out of stock now and then."""
        return any(strike.fault.scarce for strike in self.strikes)

    @property
    def machine(self) -> Use:
        """What it runs on."""
        of_moments = (strike.moment.machine for strike in self.strikes if strike.moment.machine != "usual")
        return "scarce" if self.needs_scarce else next(of_moments, "usual")

    @property
    def ends_with_pool(self) -> bool:
        """Whether its pool is deleted in the end."""
        return any(strike.moment.ends_with_pool for strike in self.strikes)

    @property
    def dag_id(self) -> str:
        special = [s.moment.dag_id for s in self.strikes if s.moment.dag_id != "chaos_deferred"]
        return special[0] if special else "chaos_deferred"

    @property
    def when(self) -> list[str]:
        return [strike.when for strike in self.strikes]

    @property
    def what(self) -> list[str]:
        return [strike.what for strike in self.strikes]

    def __str__(self) -> str:
        return in_words(self.platform, self.when, self.what)


def in_words(platform: Platform, when: Sequence[str], what: Sequence[str]) -> str:
    """A cell's name."""
    strikes = ", then ".join(f"{each} at {moment}" for moment, each in zip(when, what, strict=True))
    return strikes if platform == "eks" else f"{strikes}, on {NAMES[platform]}"


@dataclass(kw_only=True)
class Night:
    """A run under way: what faults act upon.

    Attributes:
        moment: The one that has come last.
        others: More runs on the same pool.
        at_strike: The run's pods as they were when it was struck.
        broken: What was seen, while a fault lasted, that must not be.
    """

    world: World
    run: RunStatus
    pool: str
    conf: dict[str, Any]
    moment: Moment
    others: list[RunStatus] = field(default_factory=list)
    at_strike: list[PodStory] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    @classmethod
    def begin(cls, world: World, cell: Cell, attempt: int) -> Night:
        pool = f"c{cell.number}" + (f"-{attempt}" if attempt else "")
        zones = world.sandbox.zones
        conf: dict[str, Any] = {
            "pool": pool,
            "port": world.trainings.port,
            "zone": zones[cell.number % len(zones)],
            "instance_type": world.cloud.machine_types[cell.machine],
            "market": "ON_DEMAND",
        }
        for strike in cell.strikes:
            conf |= strike.fault.conf
        if any(strike.moment.ends_with_money for strike in cell.strikes):
            conf["max_cost"] = MAX_COST
            world.list_price(conf)
        if any(strike.moment.own_connection for strike in cell.strikes):
            world.add_connection(conf)
        if any(strike.moment.on_block for strike in cell.strikes):
            world.reserve_block(conf)
        if any(strike.moment.holds for strike in cell.strikes):
            world.trainings.hold(pool)
        world.cloud.prepare(pool)
        world.home.api.wait_for_dag(cell.dag_id)
        run = insist(lambda: world.home.api.trigger(cell.dag_id, conf=conf, run_id=pool))
        return cls(world=world, run=run, pool=pool, conf=conf, moment=cell.strikes[0].moment)

    def start_another(self) -> None:
        """A second run of the same DAG, with the same pool."""
        run_id = f"{self.run.run_id}-other{len(self.others)}"
        api = self.world.home.api
        self.others.append(insist(lambda: api.trigger(self.run.dag_id, conf=self.conf, run_id=run_id)))

    def wait_for(self, moment: Moment) -> None:
        """Return at the moment. Raises MomentMissed."""
        if moment.brought_by:
            self.wait_for(MOMENTS[moment.follows])
            moment.brought_by(Look(self.world, self.run, self.pool))
        self.moment = moment
        deadline = time.monotonic() + PATIENCE
        looks_at_run = time.monotonic()
        while time.monotonic() < deadline:
            self.world.revive()
            with suppress(AirflowApiError, OSError):  # an earlier strike has taken Airflow or the cluster away
                if moment.has_come(Look(self.world, self.run, self.pool)):
                    return
            if time.monotonic() > looks_at_run:  # seldom: a moment may be short, and each look takes time
                if self.has_ended:
                    break
                looks_at_run = time.monotonic() + 3
            time.sleep(0.05)
        raise MomentMissed(f"{self.run.run_id} was never seen at {moment.name}")

    def state(self, run: RunStatus | None = None) -> str:
        """The run's state; "deleted" where Airflow does not know it any more, "unknown" while Airflow is away."""
        run = run or self.run
        try:
            return self.world.home.api.run(run.dag_id, run.run_id).state
        except AirflowApiError as error:
            return "deleted" if error.args[-1] == 404 else "unknown"

    @property
    def has_ended(self) -> bool:
        """Whether the run itself has, whatever becomes of others on its pool."""
        return self.state() in ENDED

    def wait_for_end(self) -> bool:
        """Return whether all runs have ended in time."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            self.world.revive()
            states = [self.state(run) for run in (self.run, *self.others)]
            if all(state in ENDED for state in states):
                return True
            time.sleep(0.5)
        return False

    @property
    def pods(self) -> list[PodStory]:
        return self.world.pods.of_run(self.run.run_id)


def play(world: World, cell: Cell, *, attempt: int = 0) -> tuple[Night, bool]:
    """Run the night with its strikes; return it, and whether it ended in time. Raises MomentMissed."""
    night = Night.begin(world, cell, attempt)
    try:
        with ExitStack() as until_the_end:
            for number, strike in enumerate(cell.strikes):
                if number and night.has_ended:
                    break  # the strike before has ended the night
                with world.held(strike.moment.held):
                    night.wait_for(strike.moment)
                    night.at_strike += [pod for pod in night.pods if not pod.gone]
                    _strike(night, strike.fault, until_the_end)
                goes_on = strike.moment.ends_with_money
                if not goes_on and not any(later.moment.holds for later in cell.strikes[number + 1 :]):
                    world.trainings.release(night.run.run_id)
            return night, night.wait_for_end()
    finally:
        world.trainings.release(night.run.run_id)


def _strike(night: Night, fault: Fault, until_the_end: ExitStack) -> None:
    context = fault.strike(night.world, night)
    if fault.lasts is None:
        until_the_end.enter_context(context)
        return
    with context:
        time.sleep(fault.lasts)
