"""`python -m tests.airflow.chaos`: the full matrix; `--count N`: N nights drawn by `--seed`; `--cover`: CI's cells."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow_gpu_provider.sandbox import Sandbox
from airflow_gpu_provider.sandbox.aws import AwsTimings
from tests.airflow.chaos import report, schedule
from tests.airflow.chaos.cell import Cell
from tests.airflow.chaos.matrix import CellFailed, Row, run_cells
from tests.airflow.chaos.world import World, open_world

REPOSITORY = Path(__file__).parents[3]
JSON = REPOSITORY / "build" / "chaos.json"


def main() -> int:
    arguments = _parse()
    cells = _cells(arguments)
    rows: list[Row] = []
    if arguments.resume:
        rows = report.read_json(JSON)
        done = {row.number for row in rows}
        cells = [cell for cell in cells if cell.number not in done]
    failed: list[CellFailed] = []
    began = time.monotonic()
    with opened() as world:
        for number, outcome in enumerate(run_cells(world, cells), start=1):
            sys.stderr.write(f"{number}/{len(cells)} {time.monotonic() - began:.0f} s: {outcome}\n")
            rows += [outcome] if isinstance(outcome, Row) else []
            failed += [outcome] if isinstance(outcome, CellFailed) else []
            _write(arguments, sorted(rows, key=lambda row: row.number))
    return int(bool(failed) or not all(row.is_well for row in rows))


def _cells(arguments: argparse.Namespace) -> list[Cell]:
    if arguments.count:
        cells = schedule.drawn(arguments.count, seed=arguments.seed)
    else:
        cells = (schedule.cover if arguments.cover else schedule.full_matrix)(seed=arguments.seed)
    return [cell for cell in cells if not arguments.only or any(word in str(cell) for word in arguments.only)]


def _write(arguments: argparse.Namespace, rows: list[Row]) -> None:
    """After each row: whatever ends a run of hours, what it has found is there."""
    report.write_json(rows, JSON)
    if not arguments.only:
        kind: report.Kind = "drawn" if arguments.count else "cover" if arguments.cover else "matrix"
        report.write_tables(rows, REPOSITORY / "docs" / "reliability.md", kind, seed=arguments.seed)


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
