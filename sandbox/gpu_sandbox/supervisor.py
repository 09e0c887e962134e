"""Sandboxes that are known by name to one user's processes: who supervises them, how they are found and ended.

The supervisor holds a lock on `<name>.lock` for as long as it lives, so that what `<name>.json` says is true
exactly while that lock is held, however the supervisor ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import IO

from gpu_sandbox.cache import cache_folder, private_folder
from gpu_sandbox.control_api import ControlApiClient
from gpu_sandbox.errors import (
    ComponentFailed,
    ControlApiError,
    Interrupted,
    SandboxAlreadyRunning,
    SandboxError,
    SandboxNotRunning,
)
from gpu_sandbox.sandbox import Sandbox

_STOP_TIMEOUT = 30.0
_LOCK_TIMEOUT = 0.5
_POLL = 0.05
_KEPT_LOG_LINES = 30
_END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, kw_only=True)
class RunningSandbox:
    """How to reach a sandbox that runs, and its supervisor's process id."""

    name: str
    url: str
    token: str
    pid: int
    data_dir: str

    @property
    def api(self) -> ControlApiClient:
        return ControlApiClient(url=self.url, token=self.token)


def find(name: str) -> RunningSandbox:
    """The running sandbox of that name. SandboxNotRunning if there is none."""
    running = _read_state(name) if _is_supervised(name) else None
    if running is None:
        raise SandboxNotRunning(f"no sandbox named {name!r} is running; start one: gpu-sandbox up")
    return running


def supervise(name: str, sandbox: Sandbox, *, ready: Callable[[], None], until_stdin_closes: bool = False) -> None:
    """Start the sandbox, call `ready`, and end it at `down`, at a signal, or when standard input closes if so told.

    SandboxAlreadyRunning if one has that name.
    """
    with _lock_path(name).open("w") as lock:
        if not _lock(lock):
            raise SandboxAlreadyRunning(
                f"a sandbox named {name!r} is running or starting; end it (gpu-sandbox down --name {name}) "
                "or give this one another --name"
            )
        remove_leftovers(name)
        for number in _END_SIGNALS:
            signal.signal(number, _interrupt_once)
        if until_stdin_closes:
            threading.Thread(target=_interrupt_when_stdin_closes, name="sandbox-stdin", daemon=True).start()
        try:
            sandbox.start()
            _write_state(name, sandbox)
            ready()
            sandbox.control_api.down_requested.wait()
        except KeyboardInterrupt:
            sandbox.progress("stopping")
        finally:
            for number in _END_SIGNALS:
                signal.signal(number, signal.SIG_IGN)
            sandbox.stop()
            _state_path(name).unlink(missing_ok=True)


def up_command() -> list[str]:
    """The command line of `gpu-sandbox up`, which may not be on PATH."""
    return [sys.executable, "-m", "gpu_sandbox.cli", "up"]


def start_detached(name: str, arguments: Sequence[str], *, progress: Callable[[str], None]) -> None:
    """Start a supervisor that outlives this process and its terminal; returns when its sandbox is ready.

    `arguments` are those of `gpu-sandbox up`, without --detach. Raises ComponentFailed if it ends instead.
    """
    log_file = state_folder() / f"{name}.log"
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            [*up_command(), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_until_ready(name, process, log_file=log_file, progress=progress)
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        raise


def wait_until_ready(
    name: str, process: subprocess.Popen[bytes], *, log_file: Path, progress: Callable[[str], None]
) -> None:
    """Returns when the supervisor's sandbox is ready; hands its log's lines to `progress`. No time limit: the
    first start compiles. Raises ComponentFailed if the supervisor ends instead."""
    told: list[str] = []

    def tell(line: str) -> None:
        told.append(line)
        progress(line)

    with log_file.open() as lines:
        while not _is_supervised_by(process.pid, name):
            _tell(lines, tell)
            if process.poll() is not None:
                _tell(lines, tell)
                last = "\n".join(told[-_KEPT_LOG_LINES:])
                raise ComponentFailed(f"the supervisor ended with status {process.returncode}:\n{last}")
            time.sleep(_POLL)
        _tell(lines, tell)


def end(name: str) -> None:
    """Ask the sandbox to end, wait for it, and kill it if it does not. SandboxNotRunning if there is none."""
    try:
        running = find(name)
    except SandboxNotRunning:
        remove_leftovers(name)
        raise
    with _process(running.pid) as process:
        with contextlib.suppress(ControlApiError):
            running.api.call("POST", "/down")
        if not _ended(process, timeout=_STOP_TIMEOUT):
            # Everything that it started dies with it.
            signal.pidfd_send_signal(process, signal.SIGKILL)
            if not _ended(process, timeout=_STOP_TIMEOUT):
                raise ComponentFailed(f"the supervisor, process {running.pid}, cannot be killed")
    remove_leftovers(name)


def remove_leftovers(name: str) -> None:
    """Remove what a supervisor that was killed could not. Only for a name that nobody supervises."""
    left = _read_state(name)
    if left is None:
        return
    shutil.rmtree(left.data_dir, ignore_errors=True)
    _state_path(name).unlink(missing_ok=True)


def forget(name: str) -> None:
    """Remove the lock file of a name that nobody will use again."""
    _lock_path(name).unlink(missing_ok=True)


def state_folder() -> Path:
    """Where this user's sandboxes are noted: in $XDG_RUNTIME_DIR, else in the user's cache. Raises FolderNotPrivate."""
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return private_folder(Path(runtime) / "airflow-gpu-provider", variable="XDG_RUNTIME_DIR")
    return private_folder(cache_folder() / "run", variable="XDG_CACHE_HOME")


def _interrupt_once(number: int, frame: FrameType | None) -> None:
    for every in _END_SIGNALS:
        signal.signal(every, signal.SIG_IGN)
    raise Interrupted


def _interrupt_when_stdin_closes() -> None:
    while sys.stdin.buffer.read(4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def _process(pid: int) -> Iterator[int]:
    """A descriptor that stands for this process and no later one of the same id."""
    descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _ended(process: int, *, timeout: float) -> bool:
    readable, _, _ = select.select([process], [], [], timeout)
    return bool(readable)


def _is_supervised_by(pid: int, name: str) -> bool:
    running = _read_state(name)
    return running is not None and running.pid == pid


def _tell(lines: IO[str], progress: Callable[[str], None]) -> None:
    for line in lines:
        progress(line.rstrip("\n"))


def _lock_path(name: str) -> Path:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
        raise SandboxError(f"a sandbox's name is made of letters, digits, '.', '_' and '-'; not {name!r}")
    return state_folder() / f"{name}.lock"


def _lock(lock: IO[str]) -> bool:
    """Take the supervisor's lock; False if another supervisor has it."""
    deadline = time.monotonic() + _LOCK_TIMEOUT
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # For an instant it can be somebody who only looks, in _is_supervised.
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL)
        else:
            return True


def _is_supervised(name: str) -> bool:
    path = _lock_path(name)
    if not path.exists():
        return False
    with path.open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _state_path(name: str) -> Path:
    return state_folder() / f"{name}.json"


def _read_state(name: str) -> RunningSandbox | None:
    try:
        return RunningSandbox(**json.loads(_state_path(name).read_text()))
    except FileNotFoundError:
        return None


def _write_state(name: str, sandbox: Sandbox) -> None:
    from gpu_sandbox.pki import write_secret

    running = RunningSandbox(
        name=name,
        url=sandbox.control_api.url,
        token=sandbox.control_api.token,
        pid=os.getpid(),
        data_dir=str(sandbox.data_dir),
    )
    # Renamed into place: readers see all of it or nothing.
    temporary = state_folder() / f".{name}.json.{os.getpid()}"
    write_secret(temporary, json.dumps(asdict(running)).encode())
    temporary.replace(_state_path(name))
