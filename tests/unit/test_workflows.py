"""What runs on GitHub, as far as it can be checked here: what the workflows call is there, and who may publish."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import airflow_gpu_provider

REPOSITORY = Path(__file__).parents[2]
WORKFLOWS = {path.stem: path for path in (REPOSITORY / ".github/workflows").glob("*.yml")}
TARGETS = set(" ".join(re.findall(r"^([a-z][\w -]*):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)).split())


def read(name: str) -> dict[str, Any]:
    return yaml.load(WORKFLOWS[name].read_text(), yaml.BaseLoader)  # for YAML 1.1 `on` is a truth value


def jobs(name: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = read(name)["jobs"]
    return found


def steps(name: str) -> list[dict[str, Any]]:
    return [step for job in jobs(name).values() for step in job.get("steps", [])]


def test_there_is_one_for_a_change_for_a_night_and_for_a_release() -> None:
    assert WORKFLOWS.keys() == {"ci", "nightly", "release"}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_what_a_workflow_runs_is_in_the_repository(name: str) -> None:
    commands = " ; ".join(step["run"] for step in steps(name) if "run" in step)
    made = re.findall(r"\bmake ([a-z-]+)", commands)
    scripts = re.findall(r"\bbash (\S+)", commands)
    assert [each for each in made if each not in TARGETS] == []
    assert [each for each in scripts if not (REPOSITORY / each).is_file()] == []
    assert made or scripts


@pytest.mark.parametrize("name", WORKFLOWS)
def test_each_action_has_a_version(name: str) -> None:
    used = [each["uses"] for each in (*jobs(name).values(), *steps(name)) if "uses" in each]
    ours = [each for each in used if each.startswith("./")]
    assert [each for each in ours if not (REPOSITORY / each).is_file()] == []
    assert [each for each in used if each not in ours and not re.fullmatch(r"[\w-]+/[\w-]+@v\d+(\.\d+)*", each)] == []


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_may_read_and_only_a_releases_jobs_may_do_more(name: str) -> None:
    assert read(name)["permissions"] == {"contents": "read"}
    more = {job: of["permissions"] for job, of in jobs(name).items() if "permissions" in of}
    assert more == (
        {
            "build": {"contents": "read", "id-token": "write", "attestations": "write"},
            "publish": {"id-token": "write"},
            "page": {"contents": "write"},
        }
        if name == "release"
        else {}
    )


def test_a_release_is_published_after_ci_and_without_a_stored_token() -> None:
    assert read("release")["on"] == {"push": {"tags": ["v*"]}}
    assert "workflow_call" in read("ci")["on"]
    publish = jobs("release")["publish"]
    assert (jobs("release")["build"]["needs"], publish["needs"]) == ("ci", "build")
    assert jobs("release")["ci"] == {"uses": "./.github/workflows/ci.yml"}
    fetched, published = publish["steps"]
    assert fetched["with"]["name"] == "dist"
    assert "with" not in published  # no password, and the action's own registry
    assert "secrets." not in WORKFLOWS["release"].read_text()


def test_a_release_attests_what_it_publishes_with_both_sboms() -> None:
    attested = [step["with"] for step in steps("release") if step.get("uses", "").startswith("actions/attest-")]
    assert [each["subject-path"] for each in attested] == ["build/dist/*"] * 3
    made = re.findall(r"build/sbom/[\w-]+\.cdx\.json", (REPOSITORY / "Makefile").read_text())
    assert sorted(each["sbom-path"] for each in attested if "sbom-path" in each) == sorted(made)


def test_the_version_is_the_same_wherever_it_is_written() -> None:
    project = (REPOSITORY / "pyproject.toml").read_text()
    assert re.findall(r'^version = "(.+)"', project, re.MULTILINE) == [airflow_gpu_provider.__version__]
    assert f"\n## {airflow_gpu_provider.__version__} - " in (REPOSITORY / "CHANGELOG.md").read_text()


def test_no_file_names_the_host_of_a_package_registry() -> None:
    """Which registry is used is a matter of the machine: its clients are set up for it."""
    hosts = [".".join(each) for each in (("pypi", "org"), ("pythonhosted", "org"), ("npmjs", "org"), ("npmjs", "com"))]
    hosts += [".".join(each) for each in (("proxy", "golang", "org"), ("unpkg", "com"), ("jsdelivr", "net"))]
    command = ["git", "grep", "--files-with-matches", "--fixed-strings", *(f"-e{each}" for each in hosts)]
    assert subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True).stdout.splitlines() == []
