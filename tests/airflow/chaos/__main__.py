"""`python -m tests.airflow.chaos`: the full matrix; `--count N`: N nights drawn by `--seed`; `--cover`: CI's cells."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from airflow_gpu_provider.sandbox import Sandbox
from airflow_gpu_provider.sandbox.aws import AwsTimings
from tests.airflow.chaos import report, schedule
from tests.airflow.chaos.cell import Cell
from tests.airflow.chaos.matrix import Outcome, Row, run_cells
from tests.airflow.chaos.world import World, open_world

REPOSITORY = Path(__file__).parents[3]
JSON = REPOSITORY / "build" / "chaos.json"


def main() -> int:
    arguments = _parse()
    cells = _cells(arguments)
    told: list[Outcome] = []
    if arguments.resume:
        told += report.read_json(JSON)
        done = {outcome.number for outcome in told}
        cells = [cell for cell in cells if cell.number not in done]
    began = time.monotonic()
    with opened() as world:
        for number, outcome in enumerate(run_cells(world, cells), start=1):
            sys.stderr.write(f"{number}/{len(cells)} {time.monotonic() - began:.0f} s: {outcome}\n")
            told.append(outcome)
            _write(arguments, told)
    return int(not all(isinstance(outcome, Row) and outcome.is_well for outcome in told))


def _cells(arguments: argparse.Namespace) -> list[Cell]:
    if arguments.count:
        cells = schedule.drawn(arguments.count, seed=arguments.seed)
    else:
        cells = (schedule.cover if arguments.cover else schedule.full_matrix)(seed=arguments.seed)
    return [cell for cell in cells if not arguments.only or any(word in str(cell) for word in arguments.only)]


def _write(arguments: argparse.Namespace, told: Sequence[Outcome]) -> None:
    """After each cell: whatever ends a run of hours, what it has found is there."""
    report.write_json(told, JSON)
    if not arguments.only:
        kind: report.Kind = "drawn" if arguments.count else "cover" if arguments.cover else "matrix"
        report.write_tables(told, REPOSITORY / "docs" / "reliability.md", kind, seed=arguments.seed)


@contextmanager
def opened() -> Iterator[World]:
    """A sandbox and an Airflow for the whole run."""
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    with (
        tempfile.TemporaryDirectory(prefix="chaos-") as folder,
        Sandbox(boot_seconds=1.0, timings=AwsTimings(spot_notice=2.0), autoscaler="none") as sandbox,
        open_world(sandbox, Path(folder), {"PYTHONPATH": path}) as world,
    ):
        yield world


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.airflow.chaos", description=__doc__)
    parser.add_argument("--cover", action="store_true")
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true", help="go on after the rows in build/chaos.json")
    parser.add_argument("--only", nargs="*", help="words, one of which a cell has in its name")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
