"""`airflow gpu cost`: the bills that Airflow keeps, added up by month, DAG and pool."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import count
from typing import Any

import pytest

from airflow_gpu_provider.cli.commands import since_day
from airflow_gpu_provider.cli.metadata import RecordedBill
from airflow_gpu_provider.cli.tables import cost_row, sums
from airflow_gpu_provider.errors import PoolSpecError

_NUMBERS = count()
NOW = datetime(2026, 3, 15, 6, 30, tzinfo=UTC)


def usage(total: Any = 2.0, **changes: Any) -> dict[str, Any]:
    """A bill of one and a half node hours, as `Bill.to_json` has it."""
    seconds = {"booting": 600.0, "working": 4200.0, "idle": 600.0}
    made = {"pool": "train", "node_seconds": seconds, "cost": {"total": total}, "currency": "USD"}
    return {**made, "price_source": "spec", "at_least": None, **changes}


def bill(month: int = 3, dag_id: str = "nightly", run_id: str = "", **changes: Any) -> RecordedBill:
    usual = f"run-{next(_NUMBERS)}"
    return RecordedBill(dag_id=dag_id, run_id=run_id or usual, at=NOW.replace(month=month), usage=usage(**changes))


def test_they_are_added_up_by_month_dag_pool_and_currency() -> None:
    bills = [bill(), bill(total=0.5), bill(2), bill(dag_id="weekly"), bill(pool="other"), bill(currency="EUR")]
    rows = sums(bills)
    assert [(row["month"], row["dag"], row["pool"], row["currency"], row["nights"], row["cost"]) for row in rows] == [
        ("2026-02", "nightly", "train", "USD", 1, 2.0),
        ("2026-03", "nightly", "other", "USD", 1, 2.0),
        ("2026-03", "nightly", "train", "EUR", 1, 2.0),
        ("2026-03", "nightly", "train", "USD", 2, 2.5),
        ("2026-03", "weekly", "train", "USD", 1, 2.0),
    ]
    assert rows[3]["node_hours"] == 3.0
    assert [row["pool"] for row in sums(bills, ["other"])] == ["other"]


def test_a_run_with_several_bills_is_one_night() -> None:
    (row,) = sums([bill(run_id="a"), bill(run_id="a", total="unknown"), bill(run_id="b")])
    assert (row["nights"], row["bills"], row["node_hours"], row["cost"]) == (2, 3, 4.5, 4.0)
    assert cost_row(row)["cost"] == "at least 4.00 USD"


def test_of_a_block_the_last_bill_counts() -> None:
    """It has all that the block used in that run: of a block in a loop, each iteration's scale-down left one."""
    of_a = [("b", 1.0, "train"), ("b", 2.5, "train"), (None, 4.0, "train"), ("b", 0.5, "other")]
    other, row = sums([bill(run_id="a", block=name, total=total, pool=pool) for name, total, pool in of_a])
    assert (row["bills"], row["node_hours"], row["cost"]) == (2, 3.0, 6.5)
    assert other["cost"] == 0.5


@pytest.mark.parametrize(
    ("bills", "cost", "note"),
    [
        ([bill()], "2.00 USD", ""),
        ([bill(price_source="list price")], "2.00 USD (list price)", ""),
        ([bill(), bill(price_source="list price"), bill()], "6.00 USD (list price)", ""),
        ([bill(at_least="the end of i-1 is not known"), bill()], "at least 4.00 USD", ""),
        ([bill(total="unknown"), bill()], "at least 2.00 USD", "1 of unknown cost"),
        ([bill(total="unknown", price_source=None)], "unknown", ""),
    ],
)
def test_people_read_how_far_a_sum_is_known(bills: list[RecordedBill], cost: str, note: str) -> None:
    (row,) = map(cost_row, sums(bills))
    assert (row["cost"], row["note"]) == (cost, note)


@pytest.mark.parametrize(
    ("given", "at"),
    [
        (None, datetime(2026, 3, 1, tzinfo=UTC)),
        ("2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)),
        ("2026-01-31T12:00:00+00:00", datetime(2026, 1, 31, 12, tzinfo=UTC)),
    ],
)
def test_since(given: str | None, at: datetime) -> None:
    assert since_day(given, NOW) == at


def test_since_no_day() -> None:
    with pytest.raises(PoolSpecError, match="--since last week is not a day"):
        since_day("last week", NOW)
