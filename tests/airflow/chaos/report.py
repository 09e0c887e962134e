"""What a run of the matrix leaves behind: build/chaos.json, and its table in docs/reliability.md."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Iterable, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Literal

from tests.airflow.chaos.clouds import NAMES, Platform
from tests.airflow.chaos.faults import FAULTS
from tests.airflow.chaos.matrix import NotRun, Outcome, Row
from tests.airflow.chaos.moments import MOMENTS
from tests.airflow.chaos.schedule import full_matrix

Kind = Literal["matrix", "gangs", "cover", "drawn"]


def write_json(outcomes: Iterable[Outcome], path: Path, kind: Kind) -> None:
    """`runs`, `leaks`, `harmed`, and a row for each run; `failed` has the cells that failed to run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows, failed = _parted(outcomes)
    content = {
        "kind": kind,
        **counts([*rows, *failed]),
        "rows": [row.to_json() for row in rows],
        "failed": [each.to_json() for each in failed],
    }
    path.write_text(json.dumps(content, indent=1) + "\n")


def read_json(path: Path, kind: Kind) -> list[Row]:
    """The rows that `write_json` has written, if it has; what failed to run is to be run again.

    ValueError for another kind.
    """
    if not path.exists():
        return []
    content = json.loads(path.read_text())
    if content["kind"] != kind:
        raise ValueError(f"{path} has the rows of a {content['kind']}, which a {kind} cannot go on with")
    names = {field.name for field in fields(Row)}
    return [Row(**{name: row[name] for name in names}) for row in content["rows"]]


def _parted(outcomes: Iterable[Outcome]) -> tuple[list[Row], list[NotRun]]:
    """By their numbers: cells that run side by side end in any order."""
    told = sorted(outcomes, key=lambda outcome: outcome.number)
    return [each for each in told if isinstance(each, Row)], [each for each in told if isinstance(each, NotRun)]


def counts(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """`broken` leaves out what Airflow itself has broken; `runs` what `failed_to_run`."""
    rows, failed = _parted(outcomes)
    return {
        "runs": len(rows),
        "leaks": sum(row.leaked for row in rows),
        "harmed": sum(bool(row.harmed) for row in rows),
        "broken": sum(bool(row.broken) and not row.airflow for row in rows),
        "airflow": sum(bool(row.airflow) for row in rows),
        "failed_to_run": len(failed),
    }


def write_tables(outcomes: Sequence[Outcome], path: Path, kind: Kind, *, seed: int) -> None:
    """Replace what stands between the page's marks of that kind."""
    page = path.read_text()
    marks = f"<!-- {kind}: written by the run itself -->", f"<!-- end of {kind} -->"
    by_what = by_cell(outcomes) if kind == "cover" else by_fault(outcomes, described=kind == "matrix")
    parts = [_summary(outcomes, seed), by_what]
    if kind == "matrix":
        parts += [by_moment(outcomes, where) for where in NAMES]
    if kind in ("matrix", "gangs"):
        parts += [by_moment(outcomes, where, of_gang=True) for where in _WITH_GANGS]
    parts += [notes(outcomes)]
    text = "\n\n".join([marks[0], *filter(None, parts), marks[1]])
    pattern = f"{re.escape(marks[0])}.*{re.escape(marks[1])}"
    if not re.search(pattern, page, flags=re.DOTALL):
        raise ValueError(f"{path} has no marks for {kind}")
    path.write_text(re.sub(pattern, lambda _: text, page, flags=re.DOTALL))


def _summary(outcomes: Sequence[Outcome], seed: int) -> str:
    found = counts(outcomes)
    at = datetime.now(UTC).date()
    airflow, python = version("apache-airflow-core"), platform.python_version()
    return (
        f"{at}, Airflow {airflow}, Python {python}, seed {seed}: **{found['runs']} runs, {found['leaks']} leaks, "
        f"{found['harmed']} harmed others**, {found['broken']} broke another promise, "
        f"{found['airflow']} were lost by Airflow itself, {found['failed_to_run']} failed to run."
    )


def by_fault(outcomes: Sequence[Outcome], *, described: bool) -> str:
    """One line for each fault; a night with two counts in both. Described where the page has not done it before."""
    lines = ["| fault | nights | not as promised | zero after (median, most) | zero by |", "|---|---|---|---|---|"]
    for name, fault in FAULTS.items():
        met = [outcome for outcome in outcomes if name in outcome.what]
        if not met:
            continue
        found = counts(met)
        odd = ", ".join(f"{found[each]} {word}" for each, word in _NOT_AS_PROMISED.items() if found[each])
        times = [row.seconds_to_zero for row in _parted(met)[0] if row.seconds_to_zero is not None]
        took = f"{median(times):.0f} s, {max(times):.0f} s" if times else "-"
        title = f"{fault.says} (`{name}`)" if described else f"`{name}`"
        lines.append(f"| {title} | {found['runs']} | {odd or '-'} | {took} | {_zero_by(met)} |")
    return "\n".join(lines)


_NOT_AS_PROMISED = {
    "leaks": "leaked",
    "harmed": "harmed others",
    "broken": "broke another promise",
    "airflow": "lost by Airflow itself",
    "failed_to_run": "failed to run",
}


def _zero_by(outcomes: Sequence[Outcome]) -> str:
    """What was to bring zero in these runs: in each of them, in the order of `_BY`."""
    found = {row.zero_by for row in _parted(outcomes)[0]}
    return "; ".join(says for by, says in _BY.items() if by in found) or "-"


def by_cell(outcomes: Iterable[Outcome]) -> str:
    """One line for each cell, with the seconds it took."""
    lines = ["| on | when | what | run | zero after, s | took |", "|---|---|---|---|---|---|"]
    for outcome in sorted(outcomes, key=lambda outcome: outcome.number):
        ends = outcome.state if isinstance(outcome, Row) else "-"
        on, when, what = NAMES[outcome.platform], ", ".join(outcome.when), ", ".join(outcome.what)
        lines.append(f"| {on} | {when} | {what} | {ends} | {_cell(outcome, meets=True)} | {outcome.seconds:.0f} s |")
    return "\n".join(lines)


_BY = {
    "itself": "the run's own tasks",
    "triggers": "the trigger of its deferred task",
    "janitor": "the janitor's next look",
    "max_runtime": "the cloud, at max_runtime",
}


_WITH_GANGS: tuple[Platform, ...] = ("eks", "karpenter")


def by_moment(outcomes: Sequence[Outcome], platform: Platform, *, of_gang: bool = False) -> str:
    """Seconds to zero for each fault at each moment of one platform's cells; what is none of its cells is a dash."""
    found = {(each.when[0], each.what[0]): each for each in outcomes if each.platform == platform}
    all_cells = [cell.strikes[0] for cell in full_matrix() if cell.platform == platform]
    cells = [strike for strike in all_cells if strike.moment.of_gang is of_gang]
    pairs = {(strike.when, strike.what) for strike in cells}
    faults = [what for what in FAULTS if any(strike.what == what for strike in cells)]
    where = f"On two nodes of {NAMES[platform]}" if of_gang else f"On {NAMES[platform]}"
    lines = [f"{where}, seconds to zero from when the run had ended:", ""]
    lines += ["| | " + " | ".join(faults) + " |", "|---" * (len(faults) + 1) + "|"]
    for when, moment in MOMENTS.items():
        if not any(strike.when == when for strike in cells):
            continue
        row = [_cell(found.get((when, what)), meets=(when, what) in pairs) for what in faults]
        lines.append(f"| {moment.says} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def _cell(outcome: Outcome | None, *, meets: bool) -> str:
    """Seconds to zero, and marks for what was not as promised."""
    if outcome is None:
        return "not run" if meets else "-"
    if isinstance(outcome, NotRun):
        return "failed to run"
    marks = {
        "LEAK": outcome.leaked,
        "HARMED": bool(outcome.harmed),
        "A": bool(outcome.airflow),
        "BROKEN": bool(outcome.broken) and not outcome.airflow,
    }
    seconds = [] if outcome.seconds_to_zero is None else [f"{outcome.seconds_to_zero:.0f}"]
    return " ".join([*seconds, *(mark for mark, has in marks.items() if has)])


def notes(outcomes: Sequence[Outcome]) -> str:
    """Every run that was not as promised, with what happened and the seed that brings it back."""
    odd = [each for each in outcomes if isinstance(each, NotRun) or not each.is_well or each.airflow]
    if not odd:
        return ""
    return "\n".join(["Not as promised:", "", *(f"- {each} (cell {each.number}, seed {each.seed})" for each in odd)])
