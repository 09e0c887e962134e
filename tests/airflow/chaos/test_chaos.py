"""A cover of the chaos matrix: each moment, each fault, and each pair that a layer of the design is there for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import pytest

from airflow_gpu_provider.sandbox import Sandbox
from tests.airflow.chaos.cell import Cell
from tests.airflow.chaos.matrix import CellFailed, Row, run_cells
from tests.airflow.chaos.report import write_json
from tests.airflow.chaos.schedule import cover
from tests.airflow.chaos.world import open_world
from tests.airflow.conftest import REPOSITORY

pytestmark = pytest.mark.timeout(2400)  # the first test waits for all cells: they run side by side


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, Row | CellFailed]]:
    """What became of every cell that is asked for."""
    asked = {item.name for item in request.session.items}
    cells = [cell for cell in cover() if f"{test_a_night_ends_as_promised.__name__}[{cell}]" in asked]
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    with open_world(sandbox, tmp_path_factory.mktemp("chaos"), {"PYTHONPATH": path}) as world:
        found = {outcome.cell: outcome for outcome in run_cells(world, cells)}
    write_json([row for row in found.values() if isinstance(row, Row)], REPOSITORY / "build" / "chaos.json")
    yield found
    sandbox.faults.clear()


@pytest.mark.parametrize("cell", cover(), ids=str)
def test_a_night_ends_as_promised(outcomes: Mapping[str, Row | CellFailed], cell: Cell) -> None:
    outcome = outcomes[str(cell)]
    assert isinstance(outcome, Row), outcome
    assert outcome.is_well, outcome
