"""The other end of the trainings' line: they say that they run, and go on until they are told to end.

So a training lasts exactly as long as a fault, and what it says is evidence of its own, whatever Airflow thinks.
"""

from __future__ import annotations

import socket
import threading
from collections import Counter
from contextlib import suppress


class Trainings:
    """Listens on `port`. A training of a run that is held waits; any other ends at once, and well.

    What says a second word is a rank that has not begun, and begins when it is told so.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._held: set[str] = set()
        self._waiting: dict[str, list[socket.socket]] = {}
        self.begun: Counter[str] = Counter()
        """How many trainings of a run have begun."""
        threading.Thread(target=self._accept, name="trainings", daemon=True).start()

    def hold(self, run_id: str) -> None:
        """Have the run's trainings wait for `release`."""
        with self._lock:
            self._held.add(run_id)

    def release(self, run_id: str) -> None:
        """Let the run's trainings end, those to come too."""
        with self._lock:
            self._held.discard(run_id)
            waiting = self._waiting.pop(run_id, [])
        for connection in waiting:
            _tell_to_end(connection)

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # close() ends it
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._greet, args=(connection,), daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        run_id, _, waits = connection.makefile().readline().strip().partition(" ")
        with self._lock:
            self.begun[run_id] += not waits
            if run_id in self._held:
                self._waiting.setdefault(run_id, []).append(connection)
                return
        _tell_to_end(connection)


def _tell_to_end(connection: socket.socket) -> None:
    with suppress(OSError), connection:  # the pod may have been killed meanwhile
        connection.sendall(b"end\n")
