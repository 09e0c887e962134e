"""accept_pool: what the command does: the bound of the bill, the steps with their end, and the report."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from airflow_gpu_provider.acceptance.pools import AcceptanceCost, accepted, price_of, with_impossible_first
from airflow_gpu_provider.acceptance.report import markdown
from airflow_gpu_provider.acceptance.steps import INSTALLATION, NIGHTS, Acceptance
from airflow_gpu_provider.clouds.base import Report, platform_for
from airflow_gpu_provider.cluster.api.clock import SystemClock
from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.testing import as_installation

PASSED, FAILED, NOT_RUN = 0, 1, 2
"""The command's exit statuses."""


def accept_pool(
    pool: GpuPool,
    *,
    image: str,
    price: float | None,
    night: timedelta,
    pod_namespace: str,
    report: Path,
    may_cost: bool,
    echo: Report,
) -> int:
    """Try a pool on its account, and write the report.

    Args:
        price: What a node costs an hour, in the spec's currency; None: as the spec says.
        night: How long a night's demand lives at the most.
        may_cost: Do it; else print the steps and what they may cost, and do nothing.

    Returns:
        PASSED where each step has, FAILED where one has not, NOT_RUN where it may not cost.

    Raises:
        PoolSpecError: The pool cannot be accepted, or its price is unknown; or a night or the report cannot be.
    """
    _check(night, report)
    tried = accepted(pool, night)
    budget = AcceptanceCost(nights=NIGHTS, night=night, price=price_of(pool, price), currency=pool.currency)
    echo(budget.in_words())
    if not may_cost:
        for each in (tried, with_impossible_first(tried)):
            for line in platform_for(each).plan(1).lines():
                echo(line)
        echo("Nothing was changed; --yes-it-costs does it.")
        return NOT_RUN
    at = SystemClock().now()
    acceptance = Acceptance(tried, image=image, pod_namespace=pod_namespace, echo=echo)
    try:
        with as_installation(INSTALLATION), _stopped_by_signals(acceptance.stop):
            acceptance.run()
    finally:
        report.write_text(markdown(acceptance.record, pool=tried, image=image, budget=budget, at=at))
        echo(f"The report is in {report}.")
    return PASSED if acceptance.record.has_passed else FAILED


def _check(night: timedelta, report: Path) -> None:
    """Raise PoolSpecError where the nights would fail, or be for nothing in the end."""
    if night <= timedelta(0):
        minutes = night.total_seconds() / 60
        raise PoolSpecError(f"A night of {minutes:g} minutes is not possible.", "Set --night-minutes above zero.")
    if report.is_dir() or not os.access(report if report.exists() else report.parent, os.W_OK):
        what = f"The report cannot be written to {report}."
        raise PoolSpecError(what, "Name a file in --report whose folder exists and is writable.")


@contextmanager
def _stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda *_: stop()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
