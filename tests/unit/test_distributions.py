"""What users install: the provider without the sandbox, and the sandbox as a distribution of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from configparser import ConfigParser
from email import message_from_string
from pathlib import Path
from zipfile import ZipFile

import pytest

REPOSITORY = Path(__file__).parents[2]


# Where a release is built, as GitHub Actions says it.
RELEASE = {"GITHUB_SERVER_URL": "https://git.example", "GITHUB_REPOSITORY": "ml-platform/airflow-gpu-provider"}


def built(project: Path, into: Path, *targets: str, **variables: str) -> ZipFile:
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(into)]
    for target in ("wheel", *targets):
        command += ["-t", target]
    environment = {name: value for name, value in os.environ.items() if name not in RELEASE}
    subprocess.run(command, cwd=project, check=True, capture_output=True, env={**environment, **variables})
    (wheel,) = into.glob("*.whl")
    return ZipFile(wheel)


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    built(REPOSITORY, folder, "sdist", **RELEASE).close()
    return folder


@pytest.fixture(scope="module")
def provider(release: Path) -> ZipFile:
    (wheel,) = release.glob("*.whl")
    return ZipFile(wheel)


@pytest.fixture(scope="module")
def sdist(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    (archive,) = release.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    (unpacked,) = folder.iterdir()
    return unpacked


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> ZipFile:
    return built(REPOSITORY / "sandbox", tmp_path_factory.mktemp("sandbox"), "sdist", **RELEASE)


def text_of(wheel: ZipFile, name: str) -> str:
    (found,) = (each for each in wheel.namelist() if each.endswith(f".dist-info/{name}"))
    return wheel.read(found).decode()


def entry_points(wheel: ZipFile) -> dict[str, list[str]]:
    parser = ConfigParser()
    parser.read_string(text_of(wheel, "entry_points.txt"))
    return {section: [*parser[section]] for section in parser.sections()}


def folders(wheel: ZipFile) -> set[str]:
    return {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" not in name}


def test_the_provider_carries_the_manifest_that_it_applies(provider: ZipFile) -> None:
    assert "airflow_gpu_provider/clouds/aws/cluster_autoscaler.yaml" in provider.namelist()


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


def test_the_provider_tells_where_it_comes_from(provider: ZipFile) -> None:
    metadata = message_from_string(text_of(provider, "METADATA"))
    source = "https://git.example/ml-platform/airflow-gpu-provider"
    assert dict(each.split(", ") for each in metadata.get_all("Project-URL", [])) == {
        "Documentation": f"{source}/blob/v{metadata['Version']}/docs/index.md",
        "Changelog": f"{source}/blob/v{metadata['Version']}/CHANGELOG.md",
        "Source": source,
        "Issues": f"{source}/issues",
    }
    assert metadata["Maintainer"]
    assert "Framework :: Apache Airflow :: Provider" in metadata.get_all("Classifier", [])


def test_on_an_index_each_link_and_picture_of_the_readme_leads_to_the_release(provider: ZipFile) -> None:
    metadata = message_from_string(text_of(provider, "METADATA"))
    at = f"v{metadata['Version']}/"
    links = re.findall(r"(!?)\[[^\]]*\]\(([^)]*)\)", metadata.get_payload())
    shown = {"!": f"https://git.example/ml-platform/airflow-gpu-provider/raw/{at}"}
    paths = [link.removeprefix(shown.get(kind, shown["!"].replace("/raw/", "/blob/"))) for kind, link in links]
    assert len(paths) >= 5
    assert [path for path in paths if not (REPOSITORY / path).is_file()] == []


def test_a_wheel_that_is_built_of_a_releases_sdist_has_its_addresses(
    provider: ZipFile, sdist: Path, tmp_path: Path
) -> None:
    assert text_of(built(sdist, tmp_path), "METADATA") == text_of(provider, "METADATA")


def test_the_sandboxes_sdist_is_whole(sandbox: ZipFile, tmp_path: Path) -> None:
    """Its wheel compiles at a first start: sandbox/tests/test_platform_wheel.py has the other."""
    (archive,) = Path(str(sandbox.filename)).parent.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    again = built(unpacked, tmp_path / "built")
    assert Path(str(again.filename)).name.endswith("-py3-none-any.whl")
    assert (again.namelist(), text_of(again, "METADATA")) == (sandbox.namelist(), text_of(sandbox, "METADATA"))
    assert "Project-URL: Source, https://git.example/ml-platform/airflow-gpu-provider" in text_of(again, "METADATA")
    assert "[go]" in text_of(again, "METADATA")
    assert not (unpacked / "tests").exists()


def test_what_is_built_outside_of_a_release_names_no_address(tmp_path: Path) -> None:
    metadata = text_of(built(REPOSITORY, tmp_path), "METADATA")
    assert "Project-URL" not in metadata


def test_the_notices_go_with_what_is_published(provider: ZipFile, sdist: Path) -> None:
    notice = (REPOSITORY / "NOTICE").read_text()
    assert text_of(provider, "licenses/NOTICE") == notice == (sdist / "NOTICE").read_text()
    assert (sdist / "SECURITY.md").is_file()
    assert [each for each in re.findall(r"[\w./-]+\.(?:js|txt)", notice) if not (sdist / each).is_file()] == []
    assert not (sdist / "sandbox").exists()


def test_no_file_of_the_wheel_is_the_code_of_others(provider: ZipFile) -> None:
    """NOTICE says so: the page's libraries are those of Airflow's own page, and Mermaid is the documentation's."""
    bundle = provider.read("airflow_gpu_provider/plugins/static/gpu-pools.js").decode()
    assert re.findall(r"@license|Copyright|Licensed under", bundle, re.IGNORECASE) == []
    assert not [name for name in provider.namelist() if "mermaid" in name]
