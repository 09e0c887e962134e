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


def test_there_is_one_for_a_change_for_a_night_for_a_release_and_for_the_documentation() -> None:
    assert WORKFLOWS.keys() == {"ci", "nightly", "release", "pages"}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_what_a_workflow_runs_is_in_the_repository(name: str) -> None:
    commands = " ; ".join(step["run"] for step in steps(name) if "run" in step)
    made = re.findall(r"\bmake ([a-z-]+)", commands)
    scripts = re.findall(r"\bbash (\S+)", commands)
    assert [each for each in made if each not in TARGETS] == []
    assert [each for each in scripts if not (REPOSITORY / each).is_file()] == []
    assert made or scripts


@pytest.mark.parametrize("name", WORKFLOWS)
def test_each_action_is_a_commit_and_names_the_release_that_it_is(name: str) -> None:
    """A tag can be moved, and then what runs with this workflow's rights is another program."""
    used = re.findall(r"uses: (.+)$", WORKFLOWS[name].read_text(), re.MULTILINE)
    assert len(used) == sum("uses" in each for each in (*jobs(name).values(), *steps(name)))
    ours = [each for each in used if each.startswith("./")]
    assert [each for each in ours if not (REPOSITORY / each).is_file()] == []
    pinned = re.compile(r"[\w-]+/[\w-]+@[\da-f]{40}  # v\d+\.\d+\.\d+")
    assert [each for each in used if each not in ours and not pinned.fullmatch(each)] == []


def test_an_action_is_the_same_commit_wherever_it_is_used() -> None:
    used = re.findall(r"uses: ([\w/-]+)@(\w+)", "".join(path.read_text() for path in WORKFLOWS.values()))
    assert len(set(used)) == len({action for action, _ in used})


@pytest.mark.parametrize("name", WORKFLOWS)
def test_what_runs_after_a_checkout_does_not_get_its_token(name: str) -> None:
    checkouts = [step for step in steps(name) if step.get("uses", "").startswith("actions/checkout@")]
    assert checkouts
    assert [each for each in checkouts if each.get("with") != {"persist-credentials": "false"}] == []


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_may_read_and_only_jobs_that_publish_may_do_more(name: str) -> None:
    assert read(name)["permissions"] == {"contents": "read"}
    more = {job: of["permissions"] for job, of in jobs(name).items() if "permissions" in of}
    assert more == MORE.get(name, {})


PUBLISHING = {
    "actions/attest",
    "actions/deploy-pages",
    "actions/download-artifact",
    "pypa/gh-action-pypi-publish",
}
MORE = {
    "release": {
        "attest": {"id-token": "write", "attestations": "write"},
        "publish": {"id-token": "write"},
        "page": {"contents": "write"},
    },
    "pages": {"deploy": {"pages": "write", "id-token": "write"}},
}


@pytest.mark.parametrize("workflow", MORE)
def test_what_may_sign_or_publish_runs_no_code_of_a_package_and_none_of_this_repository(workflow: str) -> None:
    """What is compromised in a build can attest or publish nothing but what it built."""
    for name, job in jobs(workflow).items():
        uses = {each["uses"].split("@")[0] for each in job.get("steps", []) if "uses" in each}
        runs = [each["run"] for each in job.get("steps", []) if "run" in each]
        if "write" in job.get("permissions", {}).values():
            assert uses <= PUBLISHING, name
            assert [each for each in runs if not each.startswith("gh release create ")] == []
        else:  # and others' runs leave nothing to a build: a pull request may fill a cache
            assert "actions/cache" not in uses, name


def test_a_release_is_published_after_ci_and_without_a_stored_token() -> None:
    assert read("release")["on"] == {"push": {"tags": ["v*"]}}
    assert "workflow_call" in read("ci")["on"]
    publish = jobs("release")["publish"]
    assert [(job, of.get("needs")) for job, of in jobs("release").items()] == [
        ("ci", None),
        ("build", "ci"),
        ("wheels", "build"),
        ("attest", "wheels"),
        ("publish", "attest"),
        ("page", "publish"),
    ]
    assert jobs("release")["wheels"]["steps"][-1]["run"].endswith(" -m tests.wheels dist")
    assert jobs("release")["ci"] == {"uses": "./.github/workflows/ci.yml"}
    fetched, published = publish["steps"]
    assert fetched["with"]["name"] == "dist"
    assert "with" not in published  # no password, and the action's own registry
    assert "secrets." not in WORKFLOWS["release"].read_text()


def test_a_release_attests_what_it_publishes_with_its_sboms() -> None:
    attested = [step["with"] for step in steps("release") if step.get("uses", "").startswith("actions/attest@")]
    assert attested[0] == {"subject-path": "dist/*"}
    provider, sandbox = "dist/airflow_gpu_provider-*", "dist/gpu_sandbox-*"
    assert [each["subject-path"] for each in attested[1:]] == [provider, provider, sandbox]
    fetched = [step["with"] for step in jobs("release")["attest"]["steps"] if "download-artifact" in step["uses"]]
    assert fetched == [{"name": each, "path": each} for each in ("dist", "sbom")]
    made = re.findall(r"build/(sbom/[\w-]+\.cdx\.json)", (REPOSITORY / "Makefile").read_text())
    assert sorted(each["sbom-path"] for each in attested if "sbom-path" in each) == sorted(set(made))
    given = {
        step["with"]["name"]: step["with"]["path"]
        for step in jobs("release")["build"]["steps"]
        if "path" in step.get("with", {})
    }
    assert given == {"dist": "build/dist/*", "sbom": "build/sbom/*.cdx.json"}


def test_the_version_is_the_same_wherever_it_is_written() -> None:
    for project in ("pyproject.toml", "sandbox/pyproject.toml"):
        written = re.findall(r'^version = "(.+)"', (REPOSITORY / project).read_text(), re.MULTILINE)
        assert written == [airflow_gpu_provider.__version__]
    assert f"\n## {airflow_gpu_provider.__version__} - " in (REPOSITORY / "CHANGELOG.md").read_text()


def test_no_file_names_the_host_of_a_package_registry() -> None:
    """Which registry is used is a matter of the machine: its clients are set up for it."""
    hosts = [".".join(each) for each in (("pypi", "org"), ("pythonhosted", "org"), ("npmjs", "org"), ("npmjs", "com"))]
    hosts += [".".join(each) for each in (("proxy", "golang", "org"), ("unpkg", "com"), ("jsdelivr", "net"))]
    command = ["git", "grep", "--files-with-matches", "--fixed-strings", *(f"-e{each}" for each in hosts)]
    assert subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True).stdout.splitlines() == []


def test_each_form_asks_for_what_an_answer_needs_and_is_one_that_github_takes() -> None:
    forms = {
        path.stem: yaml.safe_load(path.read_text()) for path in (REPOSITORY / ".github/ISSUE_TEMPLATE").glob("*.yml")
    }
    asked = {each["id"]: each for each in forms["bug"]["body"] if "id" in each}
    assert asked.keys() == {"symptom", "spec", "doctor", "versions"}
    assert asked["doctor"]["attributes"]["label"] == "`airflow gpu doctor --output json`"
    for form in (forms["bug"], forms["wish"]):
        assert {"name", "description", "body"} <= form.keys()
        assert {each["type"] for each in form["body"]} <= {"markdown", "textarea", "input"}
    assert (REPOSITORY / ".github/PULL_REQUEST_TEMPLATE.md").is_file()


def test_dependabot_raises_the_actions_that_are_commits() -> None:
    updates = yaml.safe_load((REPOSITORY / ".github/dependabot.yml").read_text())["updates"]
    assert [(each["package-ecosystem"], each["directory"]) for each in updates] == [
        ("github-actions", "/"),
        ("npm", "/ui"),
    ]
    assert (REPOSITORY / "ui/package-lock.json").is_file()
