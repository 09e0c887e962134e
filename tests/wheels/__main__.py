"""Installs the wheels with pip at the locked versions, and runs each command as the README has it."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECONDS_TO_A_SANDBOX = 60.0
# Of the example's image, whose program is run by the sandbox's own Python.
OF_THE_TRAINING = ("numpy", "scikit-learn")
# No Go: what would be compiled fails.
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dist", type=Path, help="the folder with the wheels")
    parser.add_argument("--uv", help="a uv to install with, in seconds; by default pip does, as a user would")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="wheels-") as temporary:
        folder = Path(temporary)
        install(wheels(given.dist), folder, given.uv)
        environment = {"PATH": f"{folder}/venv/bin:{PATH}", "HOME": temporary, "XDG_CACHE_HOME": f"{folder}/cache"}
        with step("airflow providers list"):
            listed = run(["airflow", "providers", "list", "--output", "plain"], environment)
            expect("airflow-gpu-provider " in listed, f"Airflow does not list the provider:\n{listed}")
        night(folder, environment)
        expect(not processes_of(folder), f"processes are left: {processes_of(folder)}")
        compiled = [*folder.glob("cache/**/controlplane-*")]
        expect(not compiled, f"the wheel's control plane was not taken: {compiled}")


def wheels(dist: Path) -> list[str]:
    """The provider's, and of the sandbox the one for this machine's processors."""
    found = [*dist.glob("airflow_gpu_provider-*.whl"), *dist.glob(f"gpu_sandbox-*_{os.uname().machine}.whl")]
    expect(len(found) == 2, f"{dist} has {[each.name for each in found]}, where two wheels are expected")
    return [str(each.resolve()) for each in found]


def install(given: list[str], folder: Path, uv: str | None) -> None:
    constraints = folder / "constraints.txt"
    # Without hashes: with them pip would ask for these wheels' own.
    constraints.write_text(re.sub(r" \\\n +--hash=\S+", "", (ROOT / "requirements-dev.txt").read_text()))
    with step("install"):
        venv.create(folder / "venv", with_pip=True)
        python = f"{folder}/venv/bin/python"
        pip = [uv, "pip", "install", "--python", python] if uv else [python, "-m", "pip", "install"]
        run([*pip, "--quiet", "--constraint", str(constraints), *given, *OF_THE_TRAINING], os.environ)
    with step("pip check"):
        run([python, "-m", "pip", "check"], os.environ)


def night(folder: Path, environment: Mapping[str, str]) -> None:
    image = f"train-digits:*={ROOT / 'example_dags/train_digits'}"
    try:
        with step("gpu-sandbox up") as took:
            run(["gpu-sandbox", "up", "--detach", "--image", image], environment)
        expect(took() < SECONDS_TO_A_SANDBOX, f"the first sandbox took {took():.0f} s")
        exports = shlex.split(run(["gpu-sandbox", "env"], environment))
        of_the_sandbox = dict(each.split("=", 1) for each in exports if each != "export")
        with step("a night"):
            program = [f"{folder}/venv/bin/python", "-P", str(Path(__file__).with_name("night.py")), str(folder)]
            run([*program, *of_the_sandbox], {**environment, **of_the_sandbox})
        status = json.loads(run(["gpu-sandbox", "status", "--output", "json"], environment))
        left = [each["name"] for each in status["nodes"] if each["gpus"]]
        left += [each["name"] for each in status["groups"] if each["desired"] or each["instances"]]
        expect(not left, f"the night has left {left}")
    finally:
        with step("gpu-sandbox down"):
            run(["gpu-sandbox", "down"], environment)


def processes_of(folder: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = process.read_bytes()
        except OSError:  # it has ended meanwhile
            continue
        if os.fsencode(folder) in command:
            found.append(command.replace(b"\0", b" ").decode(errors="replace"))
    return found


@contextmanager
def step(name: str) -> Iterator[Callable[[], float]]:
    started = time.monotonic()
    ended: list[float] = []
    yield lambda: ended[0]
    ended.append(time.monotonic() - started)
    print(f"{name}: {ended[0]:.0f} s", flush=True)


def run(command: list[str], environment: Mapping[str, str]) -> str:
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    expect(done.returncode == 0, f"{shlex.join(command)} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def expect(holds: bool, otherwise: str) -> None:
    if not holds:
        print(otherwise, file=sys.stderr, flush=True)  # at once: what ends the sandbox may fail as well
        sys.exit(1)


if __name__ == "__main__":
    main()
