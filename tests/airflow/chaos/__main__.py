"""`python -m tests.airflow.chaos`: the full matrix; `--count N`: N nights drawn by `--seed`; `--cover`: a few cells.

`--gangs`: those of the matrix that are about a training on two nodes.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import closing

from gpu_sandbox.pace import PACES, Pace
from tests.airflow.chaos import report, schedule
from tests.airflow.chaos.cell import Cell
from tests.airflow.chaos.matrix import Outcome, Row
from tests.airflow.chaos.worlds import REPOSITORY, run_cells
from tests.schema_findings import findings, summary

JSON = REPOSITORY / "build" / "chaos.json"


def main() -> int:
    arguments = _parse()
    cells = _cells(arguments)
    told: list[Outcome] = []
    if arguments.resume:
        told += report.read_json(JSON, _kind(arguments))
        if arguments.only:  # they are run again
            told = [outcome for outcome in told if outcome.cell not in set(map(str, cells))]
        done = {(outcome.seed, outcome.cell) for outcome in told}
        cells = [cell for cell in cells if (cell.seed, str(cell)) not in done]
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))
    pace = Pace(name=arguments.pace, speed=arguments.speed)
    with findings() as found:
        with closing(run_cells(cells, worlds=arguments.worlds, pace=pace, seed=arguments.seed)) as outcomes:
            for number, outcome in enumerate(outcomes, start=1):
                sys.stderr.write(f"{number}/{len(cells)} {time.monotonic() - began:.0f} s: {outcome}\n")
                told.append(outcome)
                _write(arguments, told)
        violations = found.new_violations()
        sys.stderr.writelines(f"Against the clouds' schemas: {violation}\n" for violation in violations)
        sys.stderr.write(f"{summary(found.counts(), len(violations))}\n")
    return int(bool(violations) or not all(isinstance(outcome, Row) and outcome.is_well for outcome in told))


def _cells(arguments: argparse.Namespace) -> list[Cell]:
    if arguments.count:
        cells = schedule.drawn(arguments.count, seed=arguments.seed)
    else:
        of = schedule.cover if arguments.cover else schedule.of_gangs if arguments.gangs else schedule.full_matrix
        cells = of(seed=arguments.seed)
    return [cell for cell in cells if not arguments.only or any(word in str(cell) for word in arguments.only)]


def _write(arguments: argparse.Namespace, told: Sequence[Outcome]) -> None:
    """After each cell: whatever ends a run of hours, what it has found is there."""
    report.write_json(told, JSON, _kind(arguments))
    if arguments.resume or not arguments.only:
        report.write_tables(told, REPOSITORY / "docs" / "reliability.md", _kind(arguments), seed=arguments.seed)


def _kind(arguments: argparse.Namespace) -> report.Kind:
    return "drawn" if arguments.count else "cover" if arguments.cover else "gangs" if arguments.gangs else "matrix"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.airflow.chaos", description=__doc__)
    parser.add_argument("--cover", action="store_true")
    parser.add_argument("--gangs", action="store_true")
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--worlds", type=int, default=1, help="how many run side by side: a sandbox and an Airflow each"
    )
    parser.add_argument("--pace", choices=PACES, default="quick", help="how long the cloud takes")
    parser.add_argument("--speed", type=float, default=20.0, help="of a real pace")
    parser.add_argument("--resume", action="store_true", help="go on after the rows in build/chaos.json")
    parser.add_argument(
        "--only", nargs="*", help="words, one of which a cell has in its name; with --resume, run again"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
