"""What the commands of `airflow gpu` print: the rows of their tables, bills added up, and lines for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_gpu_provider.cli.metadata import RecordedBill
from airflow_gpu_provider.money.amounts import UNKNOWN, cost_in_words
from airflow_gpu_provider.reports.doctor import Finding
from airflow_gpu_provider.reports.status import PoolStatus
from airflow_gpu_provider.scaling.decide.snapshot import plural
from airflow_gpu_provider.scaling.end.janitor import Leftover
from airflow_gpu_provider.times import format_seconds
from airflow_gpu_provider.untrusted import plain

_WIDE = 400  # columns; more than any row takes
_NAMED = 5  # pools in one line

Row = Mapping[str, Any]

_NOTHING = {"nights": 0, "bills": 0, "node_hours": 0.0, "cost": 0.0, "unknown": 0, "at_least": 0}


def pool_row(each: PoolStatus) -> Row:
    return {
        "pool": each.pool,
        "wanted": each.wanted,
        "nodes": each.nodes,
        "booting": each.booting,
        "out_of_use": each.out_of_use,
        "launching": each.launching,
        "gpus": each.gpus,
        "used": each.gpus_used,
        "idle": each.gpus_idle,
        "cost_per_hour": cost_in_words(each.cost_per_hour, each.currency, by=each.price_source),
    }


def machine_rows(found: list[PoolStatus]) -> list[Row]:
    return [
        {
            "pool": row.pool,
            "node": row.node or row.machine,
            "state": row.state,
            "gpus_used": f"{row.gpus_used}/{row.gpus}",
            "age": _age(row.age_seconds),
            "cost_so_far": cost_in_words(row.cost_so_far, each.currency, by=each.price_source),
            "pods": ", ".join(row.pods),
        }
        for each in found
        for row in each.machines
    ]


def lease_rows(found: list[PoolStatus]) -> list[Row]:
    return [
        {
            "pool": row.pool,
            "run": row.run,
            "airflow": row.installation,
            "nodes": row.nodes,
            "until": f"{datetime.fromisoformat(row.until):%Y-%m-%d %H:%M}Z{'' if row.live else ', which is over'}",
            "left": _left(row.budget, each),
            "extended": row.extended or row.budget.get("raised", ""),
            "unreadable": "; ".join(row.unreadable),
        }
        for each in found
        for row in each.leases
    ]


def _left(budget: Mapping[str, Any], of: PoolStatus) -> str:
    """Return what is left of a run's money, "at least": it is counted at the dearest machine."""
    if not budget:
        return ""
    left = cost_in_words(budget["left"], of.currency, at_least=True, by=of.price_source)
    return f"{left} of {cost_in_words(budget['max_cost'], of.currency)}"


def finding_row(each: Finding) -> Row:
    """Return what to do beneath what was found: side by side, both would be too narrow to read."""
    found = f"{each.message}\n-> {each.fix}" if each.fix else each.message
    return {"pool": each.pool, "check": each.check, "result": each.result, "found": found}


def leftover_row(each: Leftover, currency: str, price_source: str = "") -> Row:
    return {
        "pool": each.pool,
        "kind": each.kind,
        "name": each.name,
        "why": each.why,
        "age": _age(each.age_seconds),
        "cost_so_far": cost_in_words(each.cost, currency, by=price_source) if each.kind == "machine" else "",
    }


def sums(bills: Iterable[RecordedBill], pools: Collection[str] = ()) -> list[Row]:
    """Return a row for each month, DAG, pool and currency; of all pools where none is named.

    A DAG's nights are its runs, however many blocks each has. Of a run's bills for one block the last one counts, which
    has all that the block used. A bill whose cost is unknown counts its node hours, and is told apart; what it cost is
    in no sum.
    """
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    runs: dict[tuple[str, ...], set[str]] = {}
    for each in _last_of_blocks(bills):
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


def _last_of_blocks(bills: Iterable[RecordedBill]) -> Iterable[RecordedBill]:
    """Leave out bills after which a block had another one: of several scale-downs, of which each bills all so far."""
    found: dict[tuple[Any, ...], RecordedBill] = {}
    for number, each in enumerate(sorted(bills, key=lambda each: each.at)):
        block = each.usage.get("block", number)  # bills of earlier releases do not name it
        found[each.dag_id, each.run_id, each.usage.get("pool"), block] = each
    return found.values()


def _one(before: str | None, now: str | None) -> str | None:
    """Return whose prices they are: of two kinds, list prices, for they are not what is paid."""
    return before if before in (now, "list price") else now or before


def _rounded(row: dict[str, Any]) -> Row:
    return {**row, "node_hours": round(row["node_hours"], 2), "cost": round(row["cost"], 4)}


def cost_row(row: Row) -> Row:
    is_less = bool(row["unknown"] or row["at_least"])
    is_unknown = row["unknown"] == row["bills"]
    by = row["price_source"] or ""
    cost = UNKNOWN if is_unknown else cost_in_words(row["cost"], row["currency"], at_least=is_less, by=by)
    notes = [f"{row['unknown']} of unknown cost"] if row["unknown"] and not is_unknown else []
    shown = {name: row[name] for name in ("month", "dag", "pool", "nights", "node_hours")}
    return {**shown, "cost": cost, "note": "; ".join(notes)}


def few(names: list[str]) -> str:
    if len(names) <= _NAMED:
        return ", ".join(names)
    return f"{', '.join(names[:_NAMED])} and {plural(len(names) - _NAMED, 'more pool')}"


def _age(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else format_seconds(timedelta(seconds=seconds))


def print_rows(rows: list[Any], output: str, *, nothing: str = "Nothing found.", wraps: bool = False) -> None:
    """Print rows as Airflow's own commands do; as JSON, numbers stay numbers.

    A table `wraps` sentences; names stay in one piece, to be copied, however narrow the terminal is. `nothing` is said
    in place of an empty table; empty: it was said already why there is none.
    """
    from airflow.cli.simple_table import AirflowConsole

    if output == "json":
        print(json.dumps(rows, indent=2))
    elif not rows and output != "yaml":
        if nothing:
            tell(nothing)
    elif output == "yaml":
        import yaml

        print(yaml.safe_dump(rows, sort_keys=False), end="")
    else:
        width = None if wraps else _WIDE
        # A reason like "[1/5] of it", or an event's text, is no markup of Rich's.
        AirflowConsole(width=width, markup=False, emoji=False).print_as(
            [{key: _cell(value) for key, value in row.items()} for row in rows], output
        )


def _cell(value: Any) -> Any:
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
    return for_terminal(text) if isinstance(text, str) else text


def for_terminal(text: str) -> str:
    """Return a text of anybody as a terminal may have it: without what it would obey; line ends stay."""
    return "\n".join(plain(line, len(line)) for line in text.splitlines())


def tell(line: str) -> None:
    """Print a line for people, where it does not disturb a program that reads the result."""
    print(for_terminal(line), file=sys.stderr, flush=True)
