"""Loopback ports, for programs that are given one and bind it seconds later."""

from __future__ import annotations

import contextlib
import random
import socket

_BELOW_EPHEMERAL = range(20000, 30000)


def free_port() -> int:
    """Return a port that is free now.

    It is outside the range that Linux uses for outgoing connections (net.ipv4.ip_local_port_range, 32768 to 60999 by
    default): on a busy machine, any of these may be taken before the program binds it.

    Raises:
        OSError: All tried ports are in use.
    """
    for port in random.SystemRandom().sample(_BELOW_EPHEMERAL, 100):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError(f"no free port among 100 of {_BELOW_EPHEMERAL.start} to {_BELOW_EPHEMERAL.stop - 1}")
