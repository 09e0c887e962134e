"""How much longer a run's nodes may be asked for."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_gpu_provider.cli.commands import ANY_RUN
from airflow_gpu_provider.errors import DemandNotExtended
from airflow_gpu_provider.scaling.end.extension import Allowance, hours
from tests.unit.scaling.pools import LATER, lease, pool


@pytest.mark.parametrize(("given", "read"), [(2, timedelta(hours=2)), ("0.5", timedelta(minutes=30))])
def test_hours(given: Any, read: timedelta) -> None:
    assert hours(given) == read


@pytest.mark.parametrize("given", ["two", None, "nan", "inf", 1e99, [1]])
def test_what_is_no_number_of_hours(given: Any) -> None:
    with pytest.raises(DemandNotExtended, match="hours="):
        hours(given)


@pytest.mark.parametrize(
    ("allowance", "most"), [(Allowance(), 6), (Allowance(most=timedelta(hours=2)), 2), (ANY_RUN, 8760)]
)
def test_who_asks_gets_what_is_allowed_once(allowance: Allowance, most: float) -> None:
    """The operator's default is the pool's max_runtime; who has a shell may give a year."""
    allowance.check_dag(pool(), "any")
    allowance.check_time(pool(), lease(), timedelta(hours=most))
    extended = lease(until=LATER + timedelta(hours=most), unextended_until=LATER)
    for found, more in ((lease(), timedelta(hours=most + 1)), (extended, timedelta(minutes=1))):
        with pytest.raises(DemandNotExtended, match=f"together may add {most} hours"):
            allowance.check_time(pool(), found, more)
