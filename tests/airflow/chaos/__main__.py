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
from tests.airflow.chaos.matrix import CellFailed, Row, run_cells
from tests.airflow.chaos.world import World, open_world

REPOSITORY = Path(__file__).parents[3]


def main() -> int:
    arguments = _parse()
    seed = arguments.seed
    if arguments.count:
        cells = schedule.drawn(arguments.count, seed=seed)
    else:
        cells = schedule.cover(seed=seed) if arguments.cover else schedule.full_matrix(seed=seed)
    if arguments.only:
        cells = [cell for cell in cells if all(word in str(cell) for word in arguments.only)]
    rows: list[Row] = []
    failed: list[CellFailed] = []
    began = time.monotonic()
    with opened() as world:
        for number, outcome in enumerate(run_cells(world, cells), start=1):
            sys.stderr.write(f"{number}/{len(cells)} {time.monotonic() - began:.0f} s: {outcome}\n")
            rows += [outcome] if isinstance(outcome, Row) else []
            failed += [outcome] if isinstance(outcome, CellFailed) else []
            report.write_json(rows, REPOSITORY / "build" / "chaos.json")
    if not arguments.only and not arguments.cover:
        kind: report.Kind = "drawn" if arguments.count else "matrix"
        report.write_tables(rows, REPOSITORY / "docs" / "reliability.md", kind, seed=seed)
    return int(bool(failed) or not all(row.is_well for row in rows))


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
    parser.add_argument("--only", nargs="*", help="words that a cell's name has in it")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
