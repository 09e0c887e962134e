"""Ports for programs that bind them later."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from gpu_sandbox import ports

EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_no_connection_is_given_that_port() -> None:
    lowest = int(EPHEMERAL.read_text().split()[0]) if EPHEMERAL.exists() else 32768
    assert all(ports.free_port() < lowest for _ in range(20))


def test_a_port_that_is_in_use_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    port = ports.free_port()
    monkeypatch.setattr(ports, "_BELOW_EPHEMERAL", range(port, port + 100))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        assert ports.free_port() != port
