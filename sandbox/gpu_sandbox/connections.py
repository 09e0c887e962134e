"""Cut the connections accepted by one of our server processes, like a failing load balancer."""

from __future__ import annotations

import contextlib
import os
import socket

from gpu_sandbox.nodes.syscalls import pidfd_getfd


def cut_connections(pid: int, port: int) -> int:
    """End every connection that this process has on its local `port`; returns how many there were.

    Both ends see it. OSError if the system does not let this process trace that one; its own children are allowed.
    """
    process = os.pidfd_open(pid)
    try:
        return sum(_cut(process, number, port) for number in _sockets(pid))
    finally:
        os.close(process)


def _sockets(pid: int) -> list[int]:
    numbers = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:"):
                numbers.append(int(name))
    return numbers


def _cut(process: int, number: int, port: int) -> bool:
    try:
        descriptor = pidfd_getfd(process, number)
    except FileNotFoundError:
        return False
    with socket.socket(fileno=descriptor) as held:
        # A listening socket has no peer, and must stay; nor has one whose other end has just gone.
        if held.family not in (socket.AF_INET, socket.AF_INET6) or held.getsockname()[1] != port:
            return False
        try:
            held.getpeername()
            held.shutdown(socket.SHUT_RDWR)
        except OSError:
            return False
    return True
