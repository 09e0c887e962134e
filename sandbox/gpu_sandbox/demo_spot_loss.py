"""A demonstrated night's fault spot-lost: the machine of one rank is reclaimed while the training runs."""

from __future__ import annotations

import threading

from gpu_sandbox.demo_journal import Entry, Journal
from gpu_sandbox.demo_watchers import RANK_ANNOTATION
from gpu_sandbox.sandbox import Sandbox

_RUNNING_PODS = "/api/v1/pods?fieldSelector=status.phase%3DRunning"


class SpotLoss:
    """Gives the last rank's machine its notice when the training prints a line that begins with `after`; once."""

    def __init__(self, sandbox: Sandbox, journal: Journal, *, after: str) -> None:
        self._sandbox = sandbox
        self._journal = journal
        self._after = after
        self._done = threading.Event()
        journal.listen(self._see)

    def _see(self, entry: Entry) -> None:
        if entry.subject == "log" and entry.what.startswith(self._after) and not self._done.is_set():
            self._done.set()
            # Another thread: this one holds the journal, and it is a watcher's.
            threading.Thread(target=self._take, name="demo-spot-loss", daemon=True).start()

    def _take(self) -> None:
        status, found = self._sandbox.control_plane.request("GET", _RUNNING_PODS)
        pods = found["items"] if status == 200 else []
        ranks = [pod for pod in pods if RANK_ANNOTATION in pod["metadata"].get("annotations", {})]
        if not ranks:
            self._journal.write("note", "spot-lost", "no rank runs: no machine was taken")
            return
        last = max(ranks, key=lambda pod: int(pod["metadata"]["annotations"][RANK_ANNOTATION]))
        node = last["spec"]["nodeName"]
        try:
            (instance,) = self._sandbox.interrupt_spot(node=node)
        except ValueError as error:
            self._journal.write("note", "spot-lost", str(error))
        else:
            self._journal.write("note", "spot-lost", f"{instance} has its notice: the machine of {node}")
