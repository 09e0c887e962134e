"""Whose memory counts: that of a container's processes, whichever end meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gpu_sandbox.nodes import memory

MIB = 2**20
HOLDS = "import sys; held = bytearray(64 * 2**20); print(flush=True); sys.stdin.read()"
STARTS_ONE = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {HOLDS!r}])"


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[bytes]]:
    """A process whose child holds 64 MiB."""
    with subprocess.Popen([sys.executable, "-c", STARTS_ONE], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.mark.parametrize("limit", [32 * MIB, 1024 * MIB], ids=["counted finely", "counted roughly"])
def test_what_a_process_has_started_counts(parent: subprocess.Popen[bytes], limit: int) -> None:
    assert 64 * MIB < memory.used_bytes(parent.pid, limit) < 128 * MIB


def test_a_process_that_ends_while_it_is_looked_at_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(path: str) -> list[str]:
        raise ProcessLookupError(path)

    monkeypatch.setattr(os, "listdir", ended)
    assert memory.used_bytes(2**30, 0) == 0
