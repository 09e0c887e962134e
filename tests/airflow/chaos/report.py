"""What a run of the matrix leaves behind: build/chaos.json, and its table in docs/reliability.md."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Literal

from tests.airflow.chaos.faults import FAULTS
from tests.airflow.chaos.matrix import Row
from tests.airflow.chaos.moments import MOMENTS

Kind = Literal["matrix", "cover", "drawn"]


def write_json(rows: Sequence[Row], path: Path) -> None:
    """`runs`, `leaks`, `harmed`, and a row for each run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {**counts(rows), "rows": [row.to_json() for row in rows]}
    path.write_text(json.dumps(content, indent=1) + "\n")


def read_json(path: Path) -> list[Row]:
    """The rows that `write_json` has written."""
    names = {field.name for field in fields(Row)}
    return [Row(**{name: row[name] for name in names}) for row in json.loads(path.read_text())["rows"]]


def counts(rows: Iterable[Row]) -> dict[str, int]:
    rows = list(rows)
    return {
        "runs": len(rows),
        "leaks": sum(row.leaked for row in rows),
        "harmed": sum(bool(row.harmed) for row in rows),
        "broken": sum(bool(row.broken) and not row.airflow for row in rows),
        "airflow": sum(bool(row.airflow) for row in rows),
    }


def write_tables(rows: Sequence[Row], path: Path, kind: Kind, *, seed: int) -> None:
    """Replace what stands between the page's marks of that kind."""
    page = path.read_text()
    marks = f"<!-- {kind}: written by the run itself -->", f"<!-- end of {kind} -->"
    parts = [_summary(rows, seed), by_fault(rows)]
    if kind == "matrix":
        parts.append(by_moment(rows))
    parts += [notes(rows)]
    text = "\n\n".join([marks[0], *filter(None, parts), marks[1]])
    pattern = f"{re.escape(marks[0])}.*{re.escape(marks[1])}"
    if not re.search(pattern, page, flags=re.DOTALL):
        raise ValueError(f"{path} has no marks for {kind}")
    path.write_text(re.sub(pattern, lambda _: text, page, flags=re.DOTALL))


def _summary(rows: Sequence[Row], seed: int) -> str:
    found = counts(rows)
    at = datetime.now(UTC).date()
    airflow, python = version("apache-airflow-core"), platform.python_version()
    return (
        f"{at}, Airflow {airflow}, Python {python}, seed {seed}: **{found['runs']} runs, {found['leaks']} leaks, "
        f"{found['harmed']} harmed others**, {found['broken']} broke another promise, "
        f"{found['airflow']} were lost by Airflow itself."
    )


def by_fault(rows: Sequence[Row]) -> str:
    """One line for each fault; a night with two counts in both."""
    lines = [
        "| what | runs | leaks | harmed | broken | Airflow's own | zero after (median, most) | zero by |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, fault in FAULTS.items():
        met = [row for row in rows if name in row.what]
        if not met:
            continue
        found, times = counts(met), [row.seconds_to_zero for row in met if row.seconds_to_zero is not None]
        took = f"{median(times):.0f} s, {max(times):.0f} s" if times else "-"
        lines.append(
            f"| {fault.says} (`{name}`) | {found['runs']} | {found['leaks']} | {found['harmed']} | {found['broken']} "
            f"| {found['airflow']} | {took} | {_BY[fault.promise.zero_by]} |"
        )
    return "\n".join(lines)


_BY = {
    "itself": "the run's own tasks",
    "janitor": "the janitor's next look",
    "max_runtime": "the cloud, at max_runtime",
}


def by_moment(rows: Sequence[Row]) -> str:
    """Seconds to zero for each fault at each moment; what cannot meet is a dash."""
    found = {(row.when[0], row.what[0]): row for row in rows}
    lines = ["Seconds to zero from when the run had ended:", ""]
    lines += ["| | " + " | ".join(FAULTS) + " |", "|---" * (len(FAULTS) + 1) + "|"]
    for when, moment in MOMENTS.items():
        cells = [_cell(found.get((when, what)), meets=fault.meets(moment)) for what, fault in FAULTS.items()]
        lines.append(f"| {moment.says} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(row: Row | None, *, meets: bool) -> str:
    if row is None:
        return "not run" if meets else "-"
    marks: list[tuple[Callable[[Row], bool], str]] = [
        (lambda row: row.leaked, "LEAK"),
        (lambda row: bool(row.harmed), "HARMED"),
        (lambda row: bool(row.airflow), "A"),
        (lambda row: bool(row.broken) and not row.airflow, "BROKEN"),
    ]
    told = [mark for has, mark in marks if has(row)]
    return " ".join([*([f"{row.seconds_to_zero:.0f}"] if row.seconds_to_zero is not None else []), *told])


def notes(rows: Sequence[Row]) -> str:
    """Every run that was not as promised, with what happened and the seed that brings it back."""
    odd = [row for row in rows if not row.is_well or row.airflow]
    return (
        "\n".join(["Not as promised:", "", *(f"- {row} (cell {row.number}, seed {row.seed})" for row in odd)])
        if odd
        else ""
    )
