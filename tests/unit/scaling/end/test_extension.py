"""How much longer a run's nodes may be asked for."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_gpu_provider.errors import DemandNotExtended
from airflow_gpu_provider.scaling.end.extension import hours


@pytest.mark.parametrize(("given", "read"), [(2, timedelta(hours=2)), ("0.5", timedelta(minutes=30))])
def test_hours(given: Any, read: timedelta) -> None:
    assert hours(given) == read


@pytest.mark.parametrize("given", ["two", None, "nan", "inf", 1e9, 9000, [1]])
def test_what_is_no_number_of_hours_or_too_many(given: Any) -> None:
    with pytest.raises(DemandNotExtended, match="hours="):
        hours(given)
