"""How the chaos matrix's worlds share its cells: real processes, whose nights are played."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tests.airflow.chaos.cell import Cell, Strike
from tests.airflow.chaos.clouds import Platform
from tests.airflow.chaos.matrix import NotRun, Row
from tests.airflow.chaos.schedule import full_matrix
from tests.airflow.chaos.worlds import AT_ONCE, Agenda, WorldFailed, end_fork_server, run_cells_in
from tests.unit.chaos_row import ROW

LOCAL, FOR_ALL = Strike(when="train-deferred", what="run-failed"), Strike(when="train-deferred", what="airflow-killed")


@pytest.fixture(scope="module", autouse=True)
def no_fork_server_is_left() -> Iterator[None]:
    yield
    end_fork_server()
    assert "from multiprocessing.forkserver import main" not in _children()


def _children() -> str:
    """The command lines of this process's children."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid():
                found.append((folder / "cmdline").read_text())
        except (FileNotFoundError, ProcessLookupError):  # it has ended since, the latter between open and read
            continue
    return "\n".join(found)


def cells(*strikes: Strike, platform: Platform = "eks", first: int = 0) -> list[Cell]:
    numbered = enumerate(strikes, start=first)
    return [Cell(number=number, seed=0, strikes=(strike,), platform=platform) for number, strike in numbered]


def row(cell: Cell) -> Row:
    """`run` says which process it was."""
    return replace(
        ROW,
        number=cell.number,
        seed=cell.seed,
        platform=cell.platform,
        when=cell.when,
        what=cell.what,
        run=str(os.getpid()),
        seconds=0.0,
        seconds_to_zero=0.0,
    )


def plays(link: Connection, folder: Path, platform: Platform) -> None:
    while (cell := link.recv()) is not None:
        assert cell.platform == platform
        link.send(row(cell))


def dies_of_cell_2(link: Connection, folder: Path, platform: Platform) -> None:
    while (cell := link.recv()) is not None:
        if cell.number == 2:
            os._exit(9)
        link.send(row(cell))


def never_opens(link: Connection, folder: Path, platform: Platform) -> None:
    os._exit(3)


def ends_badly(link: Connection, folder: Path, platform: Platform) -> None:
    plays(link, folder, platform)
    os._exit(4)


def says_where_it_is_and_stays(link: Connection, folder: Path, platform: Platform) -> None:
    link.send(row(link.recv()))
    time.sleep(3600)


def test_local_cells_come_first_and_side_by_side_and_the_others_alone() -> None:
    local, alone = cells(*[LOCAL] * (AT_ONCE + 1)), cells(FOR_ALL, FOR_ALL, first=10)
    agenda = Agenda([*alone, *local])
    busy: list[Cell] = []
    while cell := agenda.take("eks", busy):
        busy.append(cell)
    assert busy == local[:AT_ONCE]
    assert agenda.take("gke", []) is None
    assert agenda.take("eks", []) == local[-1]
    assert agenda.take("eks", local[-1:]) is None  # it is not alone yet
    assert agenda.take("eks", []) == alone[0]
    assert agenda.take("eks", alone[:1]) is None
    assert agenda.left == alone[1:]


def test_a_platform_without_a_world_is_next_and_then_the_one_with_most_left() -> None:
    agenda = Agenda([*cells(*[FOR_ALL] * 5), *cells(FOR_ALL, platform="gke", first=5)])
    assert agenda.next_platform([]) == "eks"
    assert agenda.next_platform(["eks"]) == "gke"
    assert agenda.next_platform(["eks", "gke"]) == "eks"
    assert Agenda([]).next_platform(["eks"]) is None


def test_several_worlds_share_the_cells_of_both_platforms() -> None:
    asked = [*cells(*[FOR_ALL] * 5, LOCAL), *cells(FOR_ALL, platform="gke", first=6)]
    told = list(run_cells_in(plays, asked, worlds=2))
    assert all(isinstance(outcome, Row) and outcome.is_well for outcome in told)
    assert sorted(outcome.number for outcome in told) == list(range(7))
    assert len({outcome.run for outcome in told if isinstance(outcome, Row)}) >= 2


def test_a_world_that_dies_is_told_and_another_one_goes_on() -> None:
    told = {outcome.number: outcome for outcome in run_cells_in(dies_of_cell_2, cells(*[FOR_ALL] * 4), worlds=1)}
    assert sorted(told) == list(range(4))
    lost = told.pop(2)
    assert isinstance(lost, NotRun)
    assert "ended with status 9" in lost.error
    assert all(isinstance(outcome, Row) for outcome in told.values())


def test_where_no_world_can_be_opened_no_cell_is_lost() -> None:
    told = list(run_cells_in(never_opens, cells(FOR_ALL, FOR_ALL), worlds=1))
    assert [outcome.number for outcome in told] == [0, 1]
    assert all(isinstance(outcome, NotRun) for outcome in told)


def test_a_world_that_ends_badly_after_its_cells_is_told_at_the_end() -> None:
    coming = run_cells_in(ends_badly, cells(FOR_ALL), worlds=1)
    assert isinstance(next(coming), Row)
    with pytest.raises(WorldFailed, match="ended with status 4"):
        next(coming)


def test_who_stops_in_the_midst_leaves_no_process() -> None:
    with closing(run_cells_in(says_where_it_is_and_stays, cells(FOR_ALL, FOR_ALL), worlds=1)) as coming:
        first = next(coming)
        assert isinstance(first, Row)
        assert Path(f"/proc/{first.run}").exists()
    assert not Path(f"/proc/{first.run}").exists()


def test_every_cell_of_the_matrix_has_a_name_of_its_own() -> None:
    names = [str(cell) for cell in full_matrix()]
    assert len(names) == len(set(names))
