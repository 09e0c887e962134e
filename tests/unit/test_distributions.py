"""What users install: the provider without the sandbox, and the sandbox as a distribution of its own."""

from __future__ import annotations

import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path
from zipfile import ZipFile

import pytest

REPOSITORY = Path(__file__).parents[2]


def built(project: Path, into: Path) -> ZipFile:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(into)]
    subprocess.run(command, cwd=project, check=True, capture_output=True)
    (wheel,) = into.glob("*.whl")
    return ZipFile(wheel)


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> ZipFile:
    return built(REPOSITORY, tmp_path_factory.mktemp("provider"))


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> ZipFile:
    return built(REPOSITORY / "sandbox", tmp_path_factory.mktemp("sandbox"))


def text_of(wheel: ZipFile, name: str) -> str:
    (found,) = (each for each in wheel.namelist() if each.endswith(f".dist-info/{name}"))
    return wheel.read(found).decode()


def entry_points(wheel: ZipFile) -> dict[str, list[str]]:
    parser = ConfigParser()
    parser.read_string(text_of(wheel, "entry_points.txt"))
    return {section: [*parser[section]] for section in parser.sections()}


def folders(wheel: ZipFile) -> set[str]:
    return {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" not in name}


def test_the_provider_carries_no_sandbox(provider: ZipFile) -> None:
    assert folders(provider) == {"airflow_gpu_provider"}
    assert entry_points(provider) == {"apache_airflow_provider": ["provider_info"], "airflow.plugins": ["gpu_pools"]}
    wanted = [line for line in text_of(provider, "METADATA").splitlines() if line.startswith(("Requires", "Provides"))]
    assert not [line for line in wanted if "moto" in line or "sandbox" in line]


def test_the_provider_carries_the_web_uis_bundle_and_not_its_sources(provider: ZipFile) -> None:
    scripts = [name for name in provider.namelist() if name.endswith((".js", ".ts", ".tsx"))]
    assert scripts == ["airflow_gpu_provider/plugins/static/gpu-pools.js"]
    assert provider.read(scripts[0]) == (REPOSITORY / scripts[0]).read_bytes()


def test_the_sandbox_brings_its_command_and_its_pytest_plugin(sandbox: ZipFile) -> None:
    assert folders(sandbox) == {"gpu_sandbox"}
    assert entry_points(sandbox) == {"console_scripts": ["gpu-sandbox"], "pytest11": ["gpu_sandbox"]}
    assert "gpu_sandbox/controlplane/go.mod" in sandbox.namelist()


@pytest.mark.parametrize("name", ["provider", "sandbox"])
def test_each_tells_of_its_types_and_license(name: str, request: pytest.FixtureRequest) -> None:
    wheel: ZipFile = request.getfixturevalue(name)
    (folder,) = folders(wheel)
    assert f"{folder}/py.typed" in wheel.namelist()
    assert "Apache License" in text_of(wheel, "licenses/LICENSE")
