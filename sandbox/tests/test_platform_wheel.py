"""The wheel with the compiled control plane: what is in it, and that no licence and no module is missing."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from gpu_sandbox.build import CONTROL_PLANE, KUBERNETES_VERSION

SANDBOX = Path(__file__).parents[1]
PROCESSORS = os.uname().machine
LARGEST = 60 * 10**6
"""Bytes of a wheel: a minute at 8 Mbit/s, and well below what a registry takes."""


@pytest.fixture(scope="module")
def wheel(binary: Path, tmp_path_factory: pytest.TempPathFactory) -> ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=SANDBOX, check=True, env=os.environ | {"GPU_SANDBOX_WHEEL": PROCESSORS})
    (built,) = folder.iterdir()
    return ZipFile(built)


@pytest.fixture(scope="module")
def unpacked(wheel: ZipFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(wheel.extract(f"gpu_sandbox/packaged/{CONTROL_PLANE.file}", tmp_path_factory.mktemp("unpacked")))


@pytest.fixture(scope="module")
def modules(unpacked: Path) -> set[str]:
    """What is compiled into it, as Go's linker writes it into each program."""
    found = re.findall(rb"^(?:dep|=>)\t(\S+)\t(v\S+)\th1:", unpacked.read_bytes(), re.MULTILINE)
    return {f"{path.decode()} {version.decode()}" for path, version in found}


def test_it_is_for_this_machine_and_brings_the_control_plane_of_its_own_sources(wheel: ZipFile, unpacked: Path) -> None:
    assert Path(str(wheel.filename)).name.endswith(f"-py3-none-manylinux2014_{PROCESSORS}.whl")
    assert Path(str(wheel.filename)).stat().st_size < LARGEST
    assert wheel.getinfo(f"gpu_sandbox/packaged/{unpacked.name}").external_attr >> 16 & 0o111 == 0o111
    unpacked.chmod(0o755)
    assert subprocess.check_output([unpacked, "version"], text=True) == f"v{KUBERNETES_VERSION}\n"


def test_each_compiled_module_is_listed(wheel: ZipFile, modules: set[str]) -> None:
    (name,) = (each for each in wheel.namelist() if each.endswith(".dist-info/sboms/controlplane.cdx.json"))
    listed = {f"{each['name']} {each['version']}": each["purl"] for each in json.loads(wheel.read(name))["components"]}
    (library,) = listed.keys() - modules
    assert re.fullmatch(r"std 1\.\d+\.\d+", library)
    assert modules <= listed.keys()
    assert {"k8s.io/kubernetes v1.36.3", "k8s.io/api v0.36.3"} <= modules
    assert listed["k8s.io/api v0.36.3"] == "pkg:golang/k8s.io/api@v0.36.3"


def test_each_compiled_module_has_its_licence(wheel: ZipFile, modules: set[str]) -> None:
    texts = wheel.read("gpu_sandbox/packaged/LICENSES.txt").decode().split(f"\n{'=' * 80}\n")[1:]
    of: dict[str, str] = {}
    for users, text in (each.split(f"\n{'-' * 80}\n", 1) for each in texts):
        assert len(text.split()) > 10, users
        of |= dict.fromkeys((line.rpartition(": ")[0] for line in users.splitlines()), text)
    assert of.keys() == modules | {"std"}


def test_what_is_for_other_processors_is_refused(binary: Path) -> None:
    spec = importlib.util.spec_from_file_location("hatch_build", SANDBOX / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    hatch_build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hatch_build)
    hatch_build.check_elf(binary, hatch_build.PROCESSORS[PROCESSORS][1])
    with pytest.raises(SystemExit, match="no program for ELF machine"):
        hatch_build.check_elf(binary, sum(machine for _, machine in hatch_build.PROCESSORS.values()))
    with pytest.raises(SystemExit, match="linked dynamically"):
        hatch_build.check_elf(Path("/bin/sh"), hatch_build.PROCESSORS[PROCESSORS][1])
