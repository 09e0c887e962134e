"""Both wheels in an empty environment: a sandbox in a minute, a green night by the example DAG, and nothing left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.nightly
def test_a_first_night_from_the_wheels_alone(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=REPOSITORY, check=True)
    processors = {"GPU_SANDBOX_WHEEL": os.uname().machine}
    subprocess.run(build, cwd=REPOSITORY / "sandbox", check=True, env=os.environ | processors)
    night = [sys.executable, "-m", "tests.wheels", str(tmp_path), "--uv", str(Path(sys.executable).with_name("uv"))]
    subprocess.run(night, cwd=REPOSITORY, check=True)
