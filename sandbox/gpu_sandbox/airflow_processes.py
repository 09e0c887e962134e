"""Which processes belong to one AIRFLOW_HOME, and how they are ended, however deep they were started.

Airflow's components start processes of their own (executor workers, tasks, the trigger runner, parsers),
in process groups of their own, and these outlive a killed parent. What all of them share is the
AIRFLOW_HOME in their environment, so that is what they are found by.

Run as a program (`python airflow_processes.py HOME`), this file is the guard: it waits until its stdin
closes, which happens when the process that started it ends, in whatever way, and then ends the rest.
Standard library only, so that the guard is there within milliseconds.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

KILL_AFTER = 2.0


def processes_of(home: Path) -> list[int]:
    """The ids of the living processes whose environment names `home` as AIRFLOW_HOME, the caller excepted.

    Needs SPT_NOENV=1 in that environment: setproctitle overwrites it otherwise.
    """
    wanted = f"AIRFLOW_HOME={home}".encode()
    return [pid for pid in _all_pids() if pid != os.getpid() and wanted in _environment(pid)]


def session_of(leader: int) -> list[int]:
    """The ids of the living processes of a session: its leader and what it started, in whatever process group."""
    return [pid for pid in _all_pids() if _session_id(pid) == leader]


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _session_id(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None


def _environment(pid: int) -> list[bytes]:
    """What /proc tells; nothing for zombies, for processes that are just gone, and for other users'."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []


def send(pids: list[int], signal_number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal_number)
        except ProcessLookupError:
            continue


def stop_all(pids: list[int]) -> None:
    """SIGSTOP to all; returns when none of their threads runs any more."""
    send(pids, signal.SIGSTOP)
    while any(state not in "TtZX" for pid in pids for state in _thread_states(pid)):
        time.sleep(0.01)


def _thread_states(pid: int) -> list[str]:
    """The letters of proc_pid_stat(5); none for what is gone."""
    states = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return []
    for thread in threads:
        try:
            states.append(Path(f"/proc/{pid}/task/{thread}/stat").read_text().rpartition(")")[2].split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return states


def end_all(home: Path, *, kill_after: float = KILL_AFTER) -> list[int]:
    """SIGTERM to all, SIGKILL after `kill_after` seconds; returns what is still there five minutes later (nothing)."""
    send(processes_of(home), signal.SIGTERM)
    kill_at = time.monotonic() + kill_after
    give_up_at = kill_at + 300
    while left := processes_of(home):
        now = time.monotonic()
        if now > give_up_at:
            break
        if now > kill_at:
            send(left, signal.SIGKILL)
        time.sleep(0.05)
    return left


if __name__ == "__main__":
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    sys.stdin.read()
    end_all(Path(sys.argv[1]), kill_after=1)
