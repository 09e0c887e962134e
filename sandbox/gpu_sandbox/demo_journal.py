"""What happened in a demonstrated night, in the order of observation.

The watchers write it, the live view follows it, the report is made from it: they share nothing else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Subject = Literal["stage", "run", "task", "worker", "note", "call", "machine", "node", "pod", "log"]
"""stage: the demonstration's own steps; worker: Airflow has read the DAG file and a task's operator begins;
note: a line that a task logged; call: what AWS was asked to do; machine: an EC2 instance; node: a Kubernetes
Node; log: a line that the training printed."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One observation."""

    at: float
    """Seconds since the epoch, the clock that watchers and Airflow's logs share."""
    subject: Subject
    name: str
    what: str
    """The state that the subject is in now, or the line or the call."""
    where: str = ""
    """A node's or machine's zone and type, a pod's node."""
    rank: int = 0
    """The rank of a pod that trains together with others."""


Listener = Callable[[Entry], None]


class Journal:
    """Entries, written by several threads. Listeners are called by the thread that writes."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._listeners: list[Listener] = []
        self._lock = threading.Lock()

    @property
    def entries(self) -> tuple[Entry, ...]:
        with self._lock:
            return tuple(self._entries)

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def write(
        self, subject: Subject, name: str, what: str, *, where: str = "", at: float | None = None, rank: int = 0
    ) -> None:
        """Add an entry; `at` defaults to now."""
        moment = time.time() if at is None else at
        # A training's line may have what a terminal obeys: escape sequences, or another order of its characters.
        printable = "".join(each if each.isprintable() or each == "\n" else " " for each in what)
        entry = Entry(at=moment, subject=subject, name=name, what=printable, where=where, rank=rank)
        with self._lock:
            self._entries.append(entry)
            for listener in self._listeners:
                listener(entry)

    def write_change(self, subject: Subject, name: str, what: str, *, where: str = "", at: float | None = None) -> None:
        """Add an entry unless the last one about this name is the same."""
        if self.last(subject, name) != what:
            self.write(subject, name, what, where=where, at=at)

    def last(self, subject: Subject, name: str) -> str | None:
        """What the latest entry about this name says."""
        return next((e.what for e in reversed(self.entries) if (e.subject, e.name) == (subject, name)), None)
