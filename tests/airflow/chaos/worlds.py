"""Worlds side by side: each is a process of its own with a sandbox and an Airflow, which runs the cells it is given.

Most of a night is waiting, and a fault that hits everybody needs a world for itself. A world can be killed at any
time: all that it started ends with it (see the sandbox's ComponentProcess, and the guard of airflow_processes).
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TypeAlias

from gpu_sandbox.airflow_home import AirflowNotHealthy, python_path
from gpu_sandbox.airflow_processes import end_all
from gpu_sandbox.leftovers import look_for_leftovers
from gpu_sandbox.pace import Pace
from tests.airflow.chaos.bystander import Bystander
from tests.airflow.chaos.cell import Cell
from tests.airflow.chaos.checks import BOUNDS
from tests.airflow.chaos.clouds import Platform
from tests.airflow.chaos.matrix import NotRun, Outcome, run_cell
from tests.airflow.chaos.world import World, open_sandbox, open_world

log = logging.getLogger(__name__)

AT_ONCE = 3
"""Cells in one world that nobody else notices."""

_ERROR = "error.txt"
"""The file in a world's folder with the exception that ended it."""

REPOSITORY = Path(__file__).parents[3]

_fork_server = multiprocessing.get_context("forkserver")
_fork_server.set_forkserver_preload([__name__])


class WorldFailed(Exception):
    """A world has not ended well though its cells had: the run beside them was harmed, or something is left."""


def run_cells(cells: Sequence[Cell], *, worlds: int, pace: Pace | None = None, seed: int = 0) -> Generator[Outcome]:
    """Run all cells in so many worlds, and give what became of each as it comes.

    The cells of a world that dies have failed to run. Another world follows, unless it had told nothing yet. Where
    this generator is closed before its end, no process is left.

    Raises:
        WorldFailed: At the end.
    """
    try:
        yield from run_cells_in(partial(be_world, pace=pace or Pace(), seed=seed), cells, worlds=worlds)
    finally:
        end_fork_server()


BeWorld: TypeAlias = Callable[[Connection, Path, Platform], None]


def run_cells_in(world: BeWorld, cells: Sequence[Cell], *, worlds: int) -> Generator[Outcome]:
    """`run_cells`, with what a world's process does: it gets cells until there is None, and sends their outcomes."""
    seats = _Seats(Agenda(cells), worlds, world)
    try:
        while seats.fill():
            yield from seats.hear()
    finally:
        seats.clear()
    yield from (NotRun.of(cell, "no world could be opened", seconds=0) for cell in seats.agenda.left)
    if seats.failed:
        raise WorldFailed("; ".join(seats.failed))


def end_fork_server() -> None:
    """Return when it has ended; by itself it ends seconds after this process, as it puts away all its imports.

    multiprocessing has no public call for that, but one for unit tests.
    """
    from multiprocessing.forkserver import _forkserver

    _forkserver._stop()


class Agenda:
    """The cells that no world has yet. Those that nobody else notices come first, and side by side."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.left = sorted(cells, key=lambda cell: not cell.is_local)

    def take(self, platform: Platform, busy: Collection[Cell]) -> Cell | None:
        """The next cell for a world of that platform which runs these; None where there is none, or not now.

        What hits everybody runs alone: it would hit the others' nights at some other moment.
        """
        cell = next((cell for cell in self.left if cell.platform == platform), None)
        if cell is None:
            return None
        is_local = cell.is_local and all(other.is_local for other in busy)
        if len(busy) >= (AT_ONCE if is_local else 1):
            return None
        self.left.remove(cell)
        return cell

    def next_platform(self, opened: Collection[Platform]) -> Platform | None:
        """What another world is for, beside those: a platform that has none, else the one with most left to do.

        Where the smaller platform's turn came last, all but one world would wait for it in the end.
        """
        left = Counter(cell.platform for cell in self.left)
        return max(left, key=lambda platform: (bool(opened) and platform not in opened, left[platform]), default=None)


class _Seats:
    """So many places for worlds. `failed` says which ended badly though they ran no cell."""

    def __init__(self, agenda: Agenda, seats: int, world: BeWorld) -> None:
        self.agenda = agenda
        self.failed: list[str] = []
        self._seats = seats
        self._world = world
        self._open: list[_World] = []

    def fill(self) -> bool:
        """Give the worlds something to do, and open those that there is more to do for; False if none is open."""
        for world in self._open:
            world.give(self.agenda)
        while len(self._open) < self._seats and (
            platform := self.agenda.next_platform({world.platform for world in self._open})
        ):
            self._open.append(_World(self._world, platform))
            self._open[-1].give(self.agenda)
        return bool(self._open)

    def hear(self) -> Iterator[Outcome]:
        """Wait until a world tells something; a world's end is seen too."""
        for link in wait([world.link for world in self._open]):
            world = next(each for each in self._open if each.link is link)
            outcome = world.hear()
            if outcome is None:
                yield from self._see_the_end_of(world)
            else:
                yield outcome

    def _see_the_end_of(self, world: _World) -> Iterator[Outcome]:
        self._open.remove(world)
        trouble = world.end()
        if trouble:
            log.error("%s", trouble)
        if trouble and world.was_dismissed:
            self.failed.append(trouble)
        if world.busy and not world.told:
            self._seats -= 1  # another one would fare no better
        for cell in world.busy.values():
            yield NotRun.of(cell, trouble, seconds=world.seconds)

    def clear(self) -> None:
        """Kill what is open."""
        for world in self._open:
            world.kill()
        for world in self._open:
            world.end()


class _World:
    """A world's process, as the one who opened it sees it.

    Attributes:
        busy: The cells that it runs, by their numbers.
        told: How many it has run.
        was_dismissed: Whether it was told that there is nothing more to do.
    """

    def __init__(self, world: BeWorld, platform: Platform) -> None:
        self.platform = platform
        self._folder = Path(tempfile.mkdtemp(prefix="chaos-"))
        self.link, its_link = _fork_server.Pipe()
        self._process = _fork_server.Process(target=world, args=(its_link, self._folder, platform), daemon=True)
        self._process.start()
        its_link.close()
        self._began = time.monotonic()
        self.was_dismissed = False
        self.busy: dict[int, Cell] = {}
        self.told = 0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def give(self, agenda: Agenda) -> None:
        """Hand it what it may run now; let it go where there is nothing to do any more."""
        while not self.was_dismissed and (cell := agenda.take(self.platform, self.busy.values())):
            self.busy[cell.number] = cell
            self._send(cell)
        if not self.busy and not self.was_dismissed:
            self.was_dismissed = True
            self._send(None)

    def _send(self, cell: Cell | None) -> None:
        with suppress(OSError):  # it has just died, as `hear` will tell
            self.link.send(cell)

    def hear(self) -> Outcome | None:
        """What it tells; None where it has ended."""
        try:
            outcome: Outcome = self.link.recv()
        except (EOFError, OSError):
            return None
        del self.busy[outcome.number]
        self.told += 1
        return outcome

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> str:
        """See that nothing is left of a world that ends; say how it ended, unless all was well."""
        self._process.join()
        self.link.close()
        why = _last_words(self._folder)
        end_all(_airflow_home(self._folder))
        shutil.rmtree(self._folder, ignore_errors=True)
        code = self._process.exitcode
        well = self.was_dismissed and code == 0
        return "" if well else f"the {self.platform} world {self._process.pid} ended with status {code}{why}"


def be_world(link: Connection, folder: Path, platform: Platform, *, pace: Pace, seed: int) -> None:
    """A world's process: runs the cells that come, until it is told that there is none."""
    try:
        _run_world(link, folder, platform, pace=pace, seed=seed)
    except Exception:
        (folder / _ERROR).write_text(traceback.format_exc(), "utf-8")  # its standard error is nobody's
        raise


def _run_world(link: Connection, folder: Path, platform: Platform, *, pace: Pace, seed: int) -> None:
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C reaches all of a terminal's processes: one ends the others
    with (
        open_sandbox(platform, folder / "sandbox", pace=pace, seed=seed) as sandbox,
        open_world(platform, sandbox, _airflow_home(folder), {"PYTHONPATH": python_path(REPOSITORY)}) as world,
    ):
        bystander = Bystander.begin(world)
        telling = threading.Lock()

        def run(cell: Cell) -> None:
            outcome = run_cell(world, cell, bystander)
            if isinstance(outcome, NotRun):
                _die_unless_sound(world, folder)
            with telling:
                link.send(outcome)

        while (cell := _next(link)) is not None:
            threading.Thread(target=run, args=(cell,), name=f"cell-{cell.number}", daemon=True).start()
        bystander.finish()
        _see_nothing_left(world)


def _die_unless_sound(world: World, folder: Path) -> None:
    """End this process where its Airflow or its cluster does not come back: every cell to come would fail to run."""
    try:
        world.revive()
        world.home.wait_until_healthy()
        world.items("/api/v1/nodes")
    except (AirflowNotHealthy, OSError):
        log.exception("a world is beyond use")
        (folder / _ERROR).write_text(traceback.format_exc(), "utf-8")
        os._exit(1)


def _see_nothing_left(world: World) -> None:
    """Wait for zero in the whole account: there may be nights whose moment was missed, and that nobody looked at."""
    give_up_at = time.monotonic() + BOUNDS["itself"]
    while True:
        left, strays = look_for_leftovers(world.sandbox), world.cloud.strays()
        if left.nothing and not strays:
            return
        if time.monotonic() > give_up_at:
            raise WorldFailed(f"after all nights there is {left}; {', '.join(strays) or 'no stray'}")
        time.sleep(0.5)


def _last_words(folder: Path) -> str:
    """Why the world of this folder ended, if an exception ended it."""
    error = folder / _ERROR
    return f":\n{error.read_text('utf-8')}" if error.exists() else ""


def _next(link: Connection) -> Cell | None:
    try:
        cell: Cell | None = link.recv()
    except EOFError:
        os._exit(1)  # whoever opened this world is gone; a cell's thread could start again what an orderly end stops
    return cell


def _airflow_home(folder: Path) -> Path:
    return folder.resolve() / "airflow"
