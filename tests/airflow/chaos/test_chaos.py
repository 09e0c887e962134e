"""A cover of the chaos matrix: each moment, each fault, and each pair that a layer of the design is there for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from tests.airflow.chaos.cell import Cell
from tests.airflow.chaos.matrix import Outcome, Row
from tests.airflow.chaos.schedule import cover, is_on_each_landing
from tests.airflow.chaos.worlds import run_cells

pytestmark = pytest.mark.timeout(3600)  # a cell that stays for its bounds: its moment, its end, and then zero
MOST_WORLDS = 4  # their nights wait for most of their time
# As they are run; what waits in vain first, as that takes longest.
CELLS = sorted(cover(), key=lambda cell: (not cell.is_local, cell.strikes[0].promise.ends != "red"))


@pytest.fixture(scope="module")
def outcome_of(request: pytest.FixtureRequest, tell: Callable[[Outcome], None]) -> Iterator[Callable[[Cell], Outcome]]:
    """Runs the cells that are asked for, until that one has ended."""
    asked = {item.name for item in request.session.items}
    cells = [cell for cell in CELLS if f"{test_a_night_ends_as_promised.__name__}[{cell}]" in asked]
    found: dict[str, Outcome] = {}
    with closing(run_cells(cells, worlds=min(MOST_WORLDS, (len(cells) + 1) // 2))) as coming:

        def outcome_of(cell: Cell) -> Outcome:
            while str(cell) not in found:
                outcome = next(coming)
                found[outcome.cell] = outcome
                tell(outcome)
            return found[str(cell)]

        yield outcome_of
        if len(found) == len(cells):  # else somebody has stopped the tests
            assert next(coming, None) is None  # the runs beside them, which had to notice nothing, end too


def _only_nightly(cell: Cell) -> tuple[pytest.MarkDecorator, ...]:
    return () if is_on_each_landing(cell) else (pytest.mark.nightly,)


@pytest.mark.parametrize("cell", [pytest.param(cell, id=str(cell), marks=_only_nightly(cell)) for cell in CELLS])
def test_a_night_ends_as_promised(outcome_of: Callable[[Cell], Outcome], cell: Cell) -> None:
    outcome = outcome_of(cell)
    assert isinstance(outcome, Row), outcome
    assert outcome.is_well, outcome
