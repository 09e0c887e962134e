"""Runs one cell, and says what became of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from gpu_sandbox.airflow_api import AirflowApiError
from tests.airflow.chaos.bystander import Bystander
from tests.airflow.chaos.cell import Cell, MomentMissed, Night, in_words, play
from tests.airflow.chaos.checks import (
    BOUNDS,
    DELETION_BOUND,
    Zero,
    broken_promises,
    harmed_by,
    overspent,
    promise_of,
    wait_for_zero,
)
from tests.airflow.chaos.clouds import Platform
from tests.airflow.chaos.faults import Promise
from tests.airflow.chaos.world import World, insist

log = logging.getLogger(__name__)

TRIES = 6  # a moment of a second may pass unseen on a machine under load


@dataclass(frozen=True, kw_only=True)
class Row:
    """What became of one cell.

    Attributes:
        seconds_to_zero: From when nobody wanted anything any more; None where zero did not come within `bound`.
        zero_by: What brought it.
        broken: Promises that were not kept, in words; `airflow` says where Airflow itself is the cause.
        harmed: Pods and runs of others that suffered.
    """

    number: int
    seed: int
    platform: Platform
    when: list[str]
    what: list[str]
    run: str
    state: str
    pods: int
    seconds: float
    seconds_to_zero: float | None
    zero_by: str
    bound: float
    left: str
    broken: list[str]
    airflow: str
    harmed: list[str]

    @property
    def leaked(self) -> bool:
        return self.seconds_to_zero is None

    @property
    def is_well(self) -> bool:
        """Whether this package has kept its promises."""
        return not self.leaked and not self.harmed and (not self.broken or bool(self.airflow))

    @property
    def cell(self) -> str:
        """The strikes, in words."""
        return in_words(self.platform, self.when, self.what)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "leaked": self.leaked, "well": self.is_well}

    def __str__(self) -> str:
        zero = f"zero after {self.seconds_to_zero} s" if not self.leaked else f"LEAKED: {self.left}"
        notes = [*self.broken, *(f"HARMED: {each}" for each in self.harmed), *([self.airflow] if self.airflow else [])]
        return f"{self.cell}: {self.state}, {zero} by {self.zero_by}" + "".join(f"; {note}" for note in notes)


@dataclass(frozen=True, kw_only=True)
class NotRun:
    """A cell that failed to run: its moment passed unseen each time, a fault could not be begun, or its world died."""

    number: int
    seed: int
    platform: Platform
    when: list[str]
    what: list[str]
    seconds: float
    error: str

    @classmethod
    def of(cls, cell: Cell, error: str, *, seconds: float) -> NotRun:
        return cls(
            number=cell.number,
            seed=cell.seed,
            platform=cell.platform,
            when=cell.when,
            what=cell.what,
            seconds=round(seconds, 1),
            error=error,
        )

    @property
    def cell(self) -> str:
        """The strikes, in words."""
        return in_words(self.platform, self.when, self.what)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.cell}: failed to run: {self.error}"


Outcome: TypeAlias = Row | NotRun


def run_cell(world: World, cell: Cell, bystander: Bystander) -> Outcome:
    """Run one cell, more than once where its moment passes unseen."""
    began, ended_before = time.monotonic(), len(world.revived)
    try:
        night, ended = _play(world, cell)
        promise = promise_of(cell)
        zero = _zero(world, promise, night, ended, ends_with_pool=cell.ends_with_pool)
        broken = broken_promises(night, promise, ended=ended)
        if zero.seconds is not None:
            broken += overspent(night)
        return Row(
            number=cell.number,
            seed=cell.seed,
            platform=cell.platform,
            when=cell.when,
            what=cell.what,
            run=f"{night.run.dag_id}/{night.run.run_id}",
            state=night.state(),
            pods=len(night.pods),
            seconds=round(time.monotonic() - began, 1),
            seconds_to_zero=zero.seconds,
            zero_by=promise.zero_by,
            bound=BOUNDS[promise.zero_by],
            left=zero.left,
            broken=broken,
            airflow=_blame(world, night, world.revived[ended_before:]) if broken or zero.seconds is None else "",
            harmed=[*harmed_by(night), *bystander.harm()],
        )
    except Exception as error:
        log.exception("%s failed to run", cell)  # and the others go on, whatever it was
        return NotRun.of(cell, repr(error), seconds=time.monotonic() - began)


def _play(world: World, cell: Cell) -> tuple[Night, bool]:
    for attempt in range(TRIES - 1):
        try:
            return play(world, cell, attempt=attempt)
        except MomentMissed as missed:
            log.warning("%s; once more", missed)
    return play(world, cell, attempt=TRIES - 1)


def _zero(world: World, promise: Promise, night: Night, ended: bool, *, ends_with_pool: bool) -> Zero:
    if not ended:
        insist(lambda: world.home.api.mark_run(night.run.dag_id, night.run.run_id, "failed"))
    since = time.monotonic()
    if promise.zero_by == "janitor":
        # As its schedule would start it; a cell does not wait half an hour for that.
        run_id = f"{night.run.run_id}-janitor"
        insist(lambda: world.home.api.trigger("chaos_janitor", conf=night.conf, run_id=run_id))
    bound = BOUNDS[promise.zero_by]
    if not ends_with_pool:
        return wait_for_zero(world, night.pool, bound=bound, since=since, is_zero=lambda left: left.nothing)
    zero = wait_for_zero(world, night.pool, bound=bound, since=since, is_zero=lambda left: left.no_machines)
    if zero.seconds is None:
        return zero
    insist(lambda: world.home.api.trigger("chaos_delete", conf=night.conf, run_id=f"{night.run.run_id}-delete"))
    since = time.monotonic()
    deleted = wait_for_zero(
        world, night.pool, bound=DELETION_BOUND, since=since, is_zero=lambda left: left.nothing_at_all
    )
    return zero if deleted.seconds is not None else deleted


def _blame(world: World, night: Night, ended: Sequence[str]) -> str:
    """Say what Airflow itself has done to a night: a task that it failed by mistake, a process that ended by itself."""
    told = [f"Airflow's {component} ended by itself" for component in ended]
    with suppress(AirflowApiError):  # the run is deleted
        tasks = world.home.api.tasks(night.run.dag_id, night.run.run_id)
        lost = [task.task_id for task in tasks if world.airflow.lost_by_airflow(night.run, task.task_id)]
        told += [f"Airflow lost {task_id} (apache/airflow#72716)" for task_id in lost]
    return ", ".join(told)
