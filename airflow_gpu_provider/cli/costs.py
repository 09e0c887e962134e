"""What nights have cost, by month, DAG and pool: sums of the bills that scale-downs have left as XComs.

They are kept as long as Airflow keeps its runs; the cluster's own records last two days.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from airflow_gpu_provider.cli.tables import Row
from airflow_gpu_provider.cost.amounts import UNKNOWN, in_words
from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.pools.values import time_of

_KEY = "usage"
_NOTHING = {"nights": 0, "bills": 0, "node_hours": 0.0, "cost": 0.0, "unknown": 0, "at_least": 0}


@dataclass(frozen=True, kw_only=True)
class RecordedBill:
    """The bill of one scale-down, as `Bill.to_json` wrote it, and when. A run has one for each block and map index."""

    dag_id: str
    run_id: str
    at: datetime
    usage: Mapping[str, Any]


def recorded_bills(since: datetime, dag_id: str | None = None) -> list[RecordedBill]:
    """Return the bills since then, of one DAG or of all; what an XCom backend keeps elsewhere is left out."""
    import airflow.models.taskinstance  # noqa: F401 - an XCom's relations, by name
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    wanted = [XComModel.key == _KEY, XComModel.timestamp >= since]
    wanted += [XComModel.dag_id == dag_id] if dag_id else []
    columns = (XComModel.dag_id, XComModel.run_id, XComModel.timestamp, XComModel.value)
    with create_session() as session:
        rows = session.execute(select(*columns).where(*wanted).order_by(XComModel.timestamp))
        bills = [(dag, run, at, _bill(value)) for dag, run, at, value in rows]
    return [RecordedBill(dag_id=dag, run_id=run, at=at, usage=usage) for dag, run, at, usage in bills if usage]


def _bill(value: Any) -> Mapping[str, Any] | None:
    """Return a bill; None for what is none: another operator may have an XCom of that name."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    is_bill = isinstance(value, Mapping) and isinstance(value.get("node_seconds"), Mapping)
    return value if is_bill else None


def sums(bills: Iterable[RecordedBill], pools: Collection[str] = ()) -> list[Row]:
    """Return a row for each month, DAG, pool and currency; of all pools where none is named.

    A DAG's nights are its runs, however many blocks each has. A bill whose cost is unknown counts its node hours, and
    is told apart; what it cost is in no sum.
    """
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    runs: dict[tuple[str, ...], set[str]] = {}
    for each in bills:
        usage = each.usage
        pool = usage.get("pool") or ""
        if pools and pool not in pools:
            continue
        currency = usage.get("currency") or ""
        key = (f"{each.at.astimezone(UTC):%Y-%m}", each.dag_id, pool, currency)
        names = dict(zip(("month", "dag", "pool", "currency"), key, strict=True))
        row = found.setdefault(key, {**names, **_NOTHING})
        cost = (usage.get("cost") or {}).get("total")
        runs.setdefault(key, set()).add(each.run_id)
        row["nights"] = len(runs[key])
        row["bills"] += 1
        row["node_hours"] += sum(usage["node_seconds"].values()) / 3600
        row["cost"] += cost if isinstance(cost, int | float) else 0.0
        row["unknown"] += not isinstance(cost, int | float)
        row["at_least"] += bool(usage.get("at_least"))
        row["price_source"] = _one(row.get("price_source"), usage.get("price_source"))
    return [_rounded(found[key]) for key in sorted(found)]


def _one(before: str | None, now: str | None) -> str | None:
    """Return whose prices they are: of two kinds, list prices, for they are not what is paid."""
    return before if before in (now, "list price") else now or before


def _rounded(row: dict[str, Any]) -> Row:
    return {**row, "node_hours": round(row["node_hours"], 2), "cost": round(row["cost"], 4)}


def cost_row(row: Row) -> Row:
    """Return a sum as people read it."""
    is_less = bool(row["unknown"] or row["at_least"])
    is_unknown = row["unknown"] == row["bills"]
    by = row["price_source"] or ""
    cost = UNKNOWN if is_unknown else in_words(row["cost"], row["currency"], at_least=is_less, by=by)
    notes = [f"{row['unknown']} of unknown cost"] if row["unknown"] and not is_unknown else []
    shown = {name: row[name] for name in ("month", "dag", "pool", "nights", "node_hours")}
    return {**shown, "cost": cost, "note": "; ".join(notes)}


def since_day(given: str | None, now: datetime) -> datetime:
    """Read `--since`: a day or a time in ISO 8601, in UTC where it has no zone; default: the first of this month.

    Raises:
        PoolSpecError: It is neither.
    """
    if not given:
        return now.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    try:
        return time_of(given)
    except ValueError as error:
        raise PoolSpecError(f"--since {given} is not a day.", "Give one like 2026-03-01.") from error
