"""Keeps the demonstration's Airflow up for exploration, with earlier nights in it: `make demo UI=1`.

The earlier nights are runs of the same DAG that were due on earlier days. They really run, one after another, once the
night of today is over: their machines' times are today's, and the page shows them on the days on which they were due.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from gpu_sandbox.airflow_home import AirflowHome
from gpu_sandbox.demo_trainings import Training
from gpu_sandbox.faults import Faults, Stockout

PAGE = "/plugin/gpu_pools"
MORE_DAGS = ("janitor", "extend_run")
"""What the page's buttons start: a look at the pool, and more time for a run."""

NIGHTS = 10
RED_NIGHT = 4
STOCKOUT_NIGHT = 7
_LASTS_AT_MOST = 600.0  # seconds

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class EarlierNight:
    """A night that was due this many days ago."""

    days_ago: int
    due: datetime
    fails: bool = False
    has_stockout: bool = False

    @property
    def run_id(self) -> str:
        return f"earlier__{self.due:%Y-%m-%d}"

    def __str__(self) -> str:
        what = (
            " (the training fails)" if self.fails else " (no capacity in the first zone)" if self.has_stockout else ""
        )
        return f"the night of {self.days_ago} day{'s' * (self.days_ago != 1)} ago{what}"


def earlier_nights(now: datetime) -> Iterator[EarlierNight]:
    """Yield the nights before this one, newest first; one is red, and one meets a stock-out."""
    for days_ago in range(1, NIGHTS + 1):
        due = (now - timedelta(days=days_ago)).replace(hour=2, minute=0, second=0, microsecond=0)
        is_red, is_short = days_ago == RED_NIGHT, days_ago == STOCKOUT_NIGHT
        yield EarlierNight(days_ago=days_ago, due=due, fails=is_red, has_stockout=is_short)


def stay(airflow: AirflowHome, faults: Faults, training: Training, zone: str, say: Say) -> None:
    """Print the page's address, play the earlier nights, and wait until interrupted."""
    say("")
    say(f"GPU pools in Airflow's web UI: {airflow.url}{PAGE}")
    say("It asks for no log-in: whoever can reach this address is its administrator. Ctrl-C ends everything.")
    airflow.api.wait_for_dag(MORE_DAGS[0])
    airflow.api.trigger(MORE_DAGS[0])
    for night in earlier_nights(datetime.now(UTC)):
        say(f"Playing {night}.")
        with _stockout(faults, zone if night.has_stockout else None):
            conf = training.run_conf(fails=night.fails)
            airflow.api.trigger(training.dag_id, conf=conf, run_id=night.run_id, due=night.due)
            state = airflow.api.wait_for_run(training.dag_id, night.run_id, timeout=_LASTS_AT_MOST).state
        say(f"Played {night}: {state}.")
    say(f"All {NIGHTS} earlier nights are there. Ctrl-C ends everything.")
    while True:
        # Airflow's scheduler may end where somebody deletes a DAG that runs (apache/airflow#25117).
        airflow.revive(lambda component, _: say(f"Airflow's {component} ended by itself, and is started again."))
        time.sleep(1)


@contextmanager
def _stockout(faults: Faults, zone: str | None) -> Iterator[None]:
    if zone is None:
        yield
        return
    stockout = Stockout(zone=zone)
    faults.add(stockout)
    try:
        yield
    finally:
        faults.remove(stockout)
