"""COVERAGE=1: which lines and branches of the provider a ring's tests run, in all of their processes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.rings.tiers import BIN

_SETTINGS = Path(__file__).with_name("coverage.ini")
_FOLDER = Path("build") / "coverage"


def begin() -> None:
    """Have this process's children measured, if COVERAGE is set; earlier rings' data in build/coverage counts."""
    if os.environ.get("COVERAGE"):
        _FOLDER.mkdir(parents=True, exist_ok=True)
        os.environ["COVERAGE_PROCESS_START"] = str(_SETTINGS)
        os.environ["COVERAGE_DATA"] = str(_FOLDER.absolute() / "data")


def python() -> Sequence[str]:
    """What runs pytest measured; nothing if nobody asked for it."""
    return (f"{BIN}/coverage", "run", f"--rcfile={_SETTINGS}") if os.environ.get("COVERAGE_PROCESS_START") else ()


def report() -> None:
    """Print the share of lines and of branches, if COVERAGE is set; each module's is in build/coverage/report.txt."""
    if os.environ.get("COVERAGE_PROCESS_START"):
        settings = f"--rcfile={_SETTINGS}"
        subprocess.run((f"{BIN}/coverage", "combine", settings, "--append", "--quiet", str(_FOLDER)), check=True)
        with (_FOLDER / "report.txt").open("w") as file:
            subprocess.run((f"{BIN}/coverage", "report", settings), stdout=file, check=True)
        print((_FOLDER / "report.txt").read_text().splitlines()[-1], flush=True)
