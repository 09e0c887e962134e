"""Sandboxes that are known by name to one user's processes: who supervises them, how they are found and ended.

The supervisor holds a lock on `<name>.lock` for as long as it lives, so that what `<name>.json` says is true
exactly while that lock is held, however the supervisor ended.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import IO

from airflow_gpu_provider.sandbox.build import cache_folder
from airflow_gpu_provider.sandbox.control_api import ControlApiClient
from airflow_gpu_provider.sandbox.errors import (
    ComponentFailed,
    SandboxAlreadyRunning,
    SandboxError,
    SandboxNotRunning,
)
from airflow_gpu_provider.sandbox.sandbox import Sandbox

DEFAULT_NAME = "default"
_STOP_TIMEOUT = 30.0
_POLL = 0.05
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
    with _lock_file(name) as lock:
        running = _read_state(name) if _held_by_another(lock) else None
    if running is None:
        raise SandboxNotRunning(f"no sandbox named {name!r} is running; start one: gpu-sandbox up")
    return running


def supervise(name: str, sandbox: Sandbox, *, ready: Callable[[], None]) -> None:
    """Start the sandbox, call `ready`, and end it at `down` or a signal. SandboxAlreadyRunning if one has that name."""
    with _lock_file(name) as lock:
        if _held_by_another(lock):
            raise SandboxAlreadyRunning(
                f"a sandbox named {name!r} is running or starting; end it (gpu-sandbox down --name {name}) "
                "or give this one another --name"
            )
        remove_leftovers(name)
        for number in _END_SIGNALS:
            signal.signal(number, _interrupt_once)
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


def start_detached(name: str, arguments: Sequence[str], *, progress: Callable[[str], None]) -> None:
    """Start a supervisor that outlives this process and its terminal; returns when its sandbox is ready.

    `arguments` are those of `gpu-sandbox up`, without --detach. Raises ComponentFailed if it ends instead.
    """
    log_path = state_folder() / f"{name}.log"
    with log_path.open("wb") as log:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "airflow_gpu_provider.sandbox.cli", "up", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        with log_path.open() as lines:
            while not _is_supervised_by(supervisor.pid, name):
                _tell(lines, progress)
                if supervisor.poll() is not None:
                    _tell(lines, progress)
                    raise ComponentFailed(f"the supervisor ended with status {supervisor.returncode}; see {log_path}")
                time.sleep(_POLL)
            _tell(lines, progress)
    except KeyboardInterrupt:
        supervisor.terminate()
        supervisor.wait()
        raise


def end(name: str) -> None:
    """Ask the sandbox to end, wait for it, and kill it if it does not. SandboxNotRunning if there is none."""
    try:
        running = find(name)
    except SandboxNotRunning:
        remove_leftovers(name)
        raise
    try:
        running.api.call("POST", "/down")
        ended = _wait_for_end(name)
    except SandboxError:
        ended = False
    if not ended:
        # Everything that it started dies with it.
        os.kill(running.pid, signal.SIGKILL)
        if not _wait_for_end(name):
            raise ComponentFailed(f"the supervisor, process {running.pid}, cannot be killed")
    remove_leftovers(name)


def remove_leftovers(name: str) -> None:
    """Remove what a supervisor that was killed could not. Only for a name that nobody supervises."""
    left = _read_state(name)
    if left is None:
        return
    shutil.rmtree(left.data_dir, ignore_errors=True)
    _state_path(name).unlink(missing_ok=True)


def state_folder() -> Path:
    """Where this user's sandboxes are noted: in $XDG_RUNTIME_DIR, else in the user's cache."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(runtime) / "airflow-gpu-provider" if runtime else cache_folder() / "run"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _interrupt_once(number: int, frame: FrameType | None) -> None:
    for every in _END_SIGNALS:
        signal.signal(every, signal.SIG_IGN)
    raise KeyboardInterrupt


def _wait_for_end(name: str) -> bool:
    deadline = time.monotonic() + _STOP_TIMEOUT
    while time.monotonic() < deadline:
        with _lock_file(name) as lock:
            if not _held_by_another(lock):
                return True
        time.sleep(_POLL)
    return False


def _is_supervised_by(pid: int, name: str) -> bool:
    running = _read_state(name)
    return running is not None and running.pid == pid


def _tell(lines: IO[str], progress: Callable[[str], None]) -> None:
    for line in lines:
        progress(line.rstrip("\n"))


@contextmanager
def _lock_file(name: str) -> Iterator[IO[str]]:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
        raise SandboxError(f"a sandbox's name is made of letters, digits, '.', '_' and '-'; not {name!r}")
    with (state_folder() / f"{name}.lock").open("w") as lock:
        yield lock


def _held_by_another(lock: IO[str]) -> bool:
    """Takes the lock if nobody has it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
    from airflow_gpu_provider.sandbox.pki import write_secret

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
