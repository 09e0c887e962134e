"""A sandbox that was interrupted while something was imported has ended well, and its exit status says so."""

from __future__ import annotations

import subprocess
import sys

IN_AN_EXEC = """
from gpu_sandbox.errors import Interrupted
try:
    exec("raise Interrupted")
except KeyboardInterrupt:
    pass
"""


def test_an_interrupt_that_is_caught_leaves_the_exit_status_alone() -> None:
    assert subprocess.run([sys.executable, "-c", IN_AN_EXEC], check=False, timeout=60).returncode == 0
