"""Child processes that end with this process, however it ends, and that leave their output in a log file."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

from gpu_sandbox.errors import ComponentFailed

_LOG_TAIL_BYTES = 3000
_GO_RUNTIME = ("GOMAXPROCS", "GOGC", "GOMEMLIMIT")  # as Go's package runtime documents them


class ComponentProcess:
    """One component of the control plane, started from the `controlplane` binary.

    The binary asks the kernel for SIGKILL when its parent dies. To the kernel the parent is the *thread* that
    forked, so all are forked by one thread that lives as long as this process.
    """

    def __init__(self, *, argv: Sequence[str], cwd: Path, log_file: Path) -> None:
        self.name = argv[1]
        self._argv = argv
        self._cwd = cwd
        self._log_file = log_file
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        self._process = _in_forking_thread(self._popen)

    def _popen(self) -> subprocess.Popen[bytes]:
        with self._log_file.open("ab") as log:
            return subprocess.Popen(
                self._argv,
                cwd=self._cwd,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C in a terminal must reach the supervisor alone, which then stops its components in order.
                start_new_session=True,
            )

    def check(self) -> None:
        """Raise ComponentFailed if it has ended."""
        if not self.running:
            code = self._process.returncode if self._process else "never started"
            raise ComponentFailed(f"{self.name} ended (exit status {code}). The end of its log:\n{self.log_tail()}")

    def log_tail(self) -> str:
        if not self._log_file.exists():
            return "(no log)"
        with self._log_file.open("rb") as log:
            log.seek(max(0, self._log_file.stat().st_size - _LOG_TAIL_BYTES))
            return log.read().decode(errors="replace")

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Suspend it in this context: SIGSTOP, then SIGCONT."""
        if self._process is None:
            raise ComponentFailed(f"{self.name} is not running, so it cannot be held")
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        """Ask it to end; `wait` waits for it."""
        if self._process and self.running:
            self._process.terminate()

    def wait(self, *, kill_after: float) -> None:
        """Wait for its end, by SIGKILL once `kill_after` seconds have passed."""
        if self._process is None:
            return
        try:
            self._process.wait(kill_after)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def stop_together(components: Sequence[ComponentProcess], *, kill_after: float) -> None:
    """Send SIGTERM to all, then SIGKILL to those still running after `kill_after` seconds."""
    for component in components:
        component.terminate()
    deadline = time.monotonic() + kill_after
    for component in components:
        component.wait(kill_after=max(0.0, deadline - time.monotonic()))


def _environment() -> Mapping[str, str]:
    # A proxy, or another Kubernetes in the environment, must not affect the control plane.
    runtime = {name: os.environ[name] for name in _GO_RUNTIME if name in os.environ}
    return runtime | {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": os.environ.get("HOME", "/"),
        "CONTROLPLANE_PARENT_PID": str(os.getpid()),
    }


_Popen = Callable[[], "subprocess.Popen[bytes]"]
_requests: queue.SimpleQueue[tuple[_Popen, Future[subprocess.Popen[bytes]]]] = queue.SimpleQueue()
_forking_thread: tuple[int, threading.Thread] | None = None
_forking_thread_lock = threading.Lock()


def _in_forking_thread(popen: _Popen) -> subprocess.Popen[bytes]:
    global _forking_thread
    with _forking_thread_lock:
        # A process forked from this one has the variable, but not the thread.
        if _forking_thread is None or _forking_thread[0] != os.getpid():
            thread = threading.Thread(target=_fork_on_request, name="sandbox-forking", daemon=True)
            thread.start()
            _forking_thread = (os.getpid(), thread)
    done: Future[subprocess.Popen[bytes]] = Future()
    _requests.put((popen, done))
    return done.result()


def _fork_on_request() -> None:
    while True:
        popen, done = _requests.get()
        try:
            done.set_result(popen())
        except BaseException as error:  # noqa: BLE001 - the one who asked gets it
            done.set_exception(error)
