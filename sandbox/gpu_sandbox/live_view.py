"""Shows a demonstrated night while it happens: a live screen on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from gpu_sandbox.demo_journal import Entry, Journal, Subject

COLOURS: Mapping[str, str] = {
    "success": "green",
    "Succeeded": "green",
    "Ready": "green",
    "running": "bright_green",
    "Running": "bright_green",
    "failed": "red",
    "Failed": "red",
    "upstream_failed": "red",
    "Pending": "yellow",
    "deferred": "magenta",
    "gone": "bright_black",
}
TITLES: Mapping[Subject, str] = {"task": "Tasks", "node": "GPU nodes", "pod": "Pods", "machine": "EC2 instances"}


def shown_on(console: Console, journal: Journal, *, title: str) -> AbstractContextManager[None]:
    """Show the journal's entries as they are written, for as long as the context lasts."""
    if console.is_terminal:
        return _live(console, journal, title)
    return _plain(console, journal)


@contextlib.contextmanager
def _plain(console: Console, journal: Journal) -> Iterator[None]:
    begin = time.time()
    journal.listen(lambda entry: console.print(plain_line(entry, begin), markup=False, highlight=False, soft_wrap=True))
    yield


def plain_line(entry: Entry, begin: float) -> str:
    """One entry as a line: seconds since `begin`, what it is about, its new state."""
    name = "" if entry.subject in ("run", "log") else entry.name
    about = f"{entry.subject:<7} {name}".rstrip()
    where = f"  ({entry.where})" if entry.where else ""
    return f"{entry.at - begin:6.1f} s  {about}: {entry.what}{where}"


@contextlib.contextmanager
def _live(console: Console, journal: Journal, title: str) -> Iterator[None]:
    screen = Screen(title)
    journal.listen(screen.see)
    with Live(console=console, get_renderable=screen.render, refresh_per_second=8):
        yield


class Screen:
    """The latest state of everything, and the latest lines."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._begin = time.time()
        self._states: dict[Subject, dict[str, Entry]] = {subject: {} for subject in TITLES}
        self._notes: deque[Entry] = deque(maxlen=8)
        self._log: deque[Entry] = deque(maxlen=6)
        self._stage = ""

    def see(self, entry: Entry) -> None:
        """Take an entry in; called by the thread that wrote it, while another one renders."""
        if entry.subject in self._states:
            self._states = self._states | {entry.subject: self._states[entry.subject] | {entry.name: entry}}
        elif entry.subject == "log":
            self._log.append(entry)
        elif entry.subject in ("note", "call"):
            self._notes.append(entry)
        elif entry.subject in ("stage", "run"):
            name = "DAG run" if entry.subject == "run" else entry.name
            self._stage = f"{name}: {entry.what}"

    def render(self) -> RenderableType:
        states = self._states
        seconds = time.time() - self._begin
        heading = Text(f"{self._title}   {seconds:5.1f} s   {self._stage}", style="bold")
        tables = [_table(title, states[subject]) for subject, title in TITLES.items() if states[subject]]
        panels = [
            Panel(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"), title=title, title_align="left")
            for lines, title in (
                ([entry.what for entry in list(self._log)], "The training's log"),
                ([f"{entry.name}: {entry.what}" for entry in list(self._notes)], "The tasks' log, and calls to AWS"),
            )
            if lines
        ]
        return Group(heading, *tables, *panels)


def _table(title: str, entries: Mapping[str, Entry]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2))
    for name, entry in entries.items():
        colour = COLOURS.get(entry.what.split(",")[0].split(":")[0], "default")
        table.add_row(Text(name), Text(entry.what, style=colour), Text(entry.where, style="bright_black"))
    return table
