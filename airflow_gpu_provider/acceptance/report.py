"""The report of an acceptance: one Markdown text, fit to be attached to an issue. Pure, but for the versions."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version

from airflow_gpu_provider.acceptance.budget import Budget
from airflow_gpu_provider.acceptance.expected import Expected, differences
from airflow_gpu_provider.acceptance.pools import CloudPool
from airflow_gpu_provider.acceptance.redaction import redacted
from airflow_gpu_provider.acceptance.remains import Listed
from airflow_gpu_provider.acceptance.steps import StepReport
from airflow_gpu_provider.api_calls import ApiCall
from airflow_gpu_provider.pools import EksGpuPool

_PACKAGES = (
    "airflow-gpu-provider",
    "apache-airflow",
    "apache-airflow-providers-cncf-kubernetes",
    "apache-airflow-providers-amazon",
    "apache-airflow-providers-google",
    "kubernetes",
    "botocore",
)


def markdown(
    *,
    pool: CloudPool,
    image: str,
    budget: Budget,
    at: datetime,
    steps: Sequence[StepReport],
    facts: Mapping[str, str],
    lists: Sequence[Listed],
    calls: Mapping[ApiCall, int],
    expected: Expected,
) -> str:
    """Return the report, with no secret in it: see `redaction`."""
    passed = bool(steps) and all(step.outcome == "passed" for step in steps)
    parts = [
        f"# Acceptance on {pool.kind.upper()}: {'passed' if passed else 'not passed'}",
        f"{at:%Y-%m-%d %H:%M}Z. {_types(pool)}, {', '.join(pool.capacity_types)}, in {_where(pool)}; image `{image}`.",
        f"{budget.in_words()}",
        "## Steps",
        _table(("step", "outcome", "seconds"), [(s.name, s.outcome, f"{s.seconds:.0f}") for s in steps]),
        *(f"**{step.name}**\n\n" + "\n".join(f"- {_line(each)}" for each in step.said) for step in steps if step.said),
        "## Times to each phase",
        _table(
            ("step", "phase", "seconds"),
            [(step.name, phase, f"{seconds:.1f}") for step in steps for phase, seconds in step.phases],
        ),
        "## Left in the cloud, by its own lists",
        _table(("list", "left"), [(each.what, _left(each)) for each in lists]),
        "## API calls",
        _calls(calls),
        "## What differed from the sandbox",
        "\n".join(f"- {_line(each)}" for each in differences(expected, steps, calls)) or "Nothing.",
        "## Versions",
        _table(("what", "version"), [*_versions(), *facts.items()]),
    ]
    return redacted("\n\n".join(part for part in parts if part) + "\n", names_of(pool))


def names_of(pool: CloudPool) -> dict[str, str]:
    """Return the names in a spec that tell whose account it is, and what each is."""
    fields = {
        "cluster_name": "cluster",
        "project_id": "project",
        "aws_conn_id": "connection",
        "gcp_conn_id": "connection",
        "node_role": "role",
        "service_account": "service-account",
        "launch_template": "launch-template",
    }
    found = {str(value): word for name, word in fields.items() if (value := getattr(pool, name, None))}
    return {name: word for name, word in found.items() if name not in ("aws_default", "google_cloud_default")}


def _calls(calls: Mapping[ApiCall, int]) -> str:
    rows = sorted({(call.api, call.operation) for call in calls})
    return _table(
        ("API", "call", "times", "errors"),
        [
            (api, operation, str(sum(_times(calls, api, operation).values())), _errors(calls, api, operation))
            for api, operation in rows
        ],
    )


def _times(calls: Mapping[ApiCall, int], api: str, operation: str) -> dict[str, int]:
    return {each.error: n for each, n in calls.items() if (each.api, each.operation) == (api, operation)}


def _errors(calls: Mapping[ApiCall, int], api: str, operation: str) -> str:
    found = sorted(_times(calls, api, operation).items())
    return ", ".join(f"{error} x {n}" for error, n in found if error)


def _left(each: Listed) -> str:
    if each.unasked:
        return f"not known: {each.unasked}"
    return ", ".join(each.left) + ("" if each.costs else " (costs nothing)") if each.left else "nothing"


def _types(pool: CloudPool) -> str:
    return ", ".join(pool.instance_types if isinstance(pool, EksGpuPool) else pool.machine_types)


def _where(pool: CloudPool) -> str:
    zones = pool.zones if isinstance(pool, EksGpuPool) else pool.node_locations
    return ", ".join(zones) or pool.region


def _versions() -> list[tuple[str, str]]:
    found = [("Python", platform.python_version())]
    for name in _PACKAGES:
        try:
            found.append((name, version(name)))
        except PackageNotFoundError:
            continue
    return found


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return "None."
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(text: str) -> str:
    return _line(text).replace("|", "\\|")


def _line(text: str) -> str:
    return " ".join(str(text).split())
