"""The report of an acceptance: one Markdown text, fit to be attached to an issue. Pure, but for the versions.

`report_of_run` writes it of a DAG run of example_dags/accept_pool.py, from its tasks' states and XComs. Who waits for a
pod is not killed there.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from airflow_gpu_provider.acceptance.gpu_program import RESULT
from airflow_gpu_provider.acceptance.pools import AcceptanceCost
from airflow_gpu_provider.acceptance.steps import NotAsExpected, Record, StepReport, check_nothing_left
from airflow_gpu_provider.clouds.remains import Listed, remains
from airflow_gpu_provider.cluster.api.clock import SystemClock
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.untrusted import one_line

_PACKAGES = (
    "airflow-gpu-provider",
    "apache-airflow",
    "apache-airflow-providers-cncf-kubernetes",
    "apache-airflow-providers-amazon",
    "apache-airflow-providers-google",
    "kubernetes",
    "botocore",
)


def markdown(record: Record, *, pool: GpuPool, image: str, budget: AcceptanceCost, at: datetime) -> str:
    """Return the report, with no secret in it: see `redacted`."""
    may_be = pool.preferences
    where = ", ".join(may_be.zones) or pool.cluster_region
    steps = record.steps
    parts = [
        f"# Acceptance on {pool.kind.upper()}: {'passed' if record.has_passed else 'not passed'}",
        f"{at:%Y-%m-%d %H:%M}Z. {', '.join(may_be.types)}, {', '.join(may_be.markets)}, in {where}; image `{image}`.",
        budget.in_words(),
        "## Steps",
        _table(("step", "outcome", "seconds"), [(s.name, s.outcome, f"{s.seconds:.0f}") for s in steps]),
        *(
            f"**{step.name}**\n\n" + "\n".join(f"- {_line(each)}" for each in step.lines)
            for step in steps
            if step.lines
        ),
        "## Times to each phase",
        _table(
            ("step", "phase", "seconds"),
            [(step.name, phase, f"{seconds:.1f}") for step in steps for phase, seconds in step.phases],
        ),
        "## What is left, by the cloud's and the cluster's lists",
        _table(("list", "left"), [(each.what, _left(each)) for each in record.lists]),
        "## Versions",
        _table(("what", "version"), [*_versions(), *record.facts.items()]),
    ]
    return redacted("\n\n".join(parts) + "\n", pool.private_names)


def _left(each: Listed) -> str:
    if each.unasked:
        return f"unknown: {each.unasked}"
    return ", ".join(each.left) + ("" if each.costs else " (costs nothing)") if each.left else "nothing"


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
    return one_line(str(text), len(str(text)))


# -- what a report must not hold: whose account it was, where it is reached, and with what -------------------

# Names that are known (the cluster's, the project's) are replaced wherever they occur; the rest is known by its form.

_HEX = "[0-9a-fA-F]{1,4}"
_BASE64 = "A-Za-z0-9+/_="

_FORMS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("certificate", re.compile(r"-----BEGIN [A-Z ]+-----.*?(?:-----END [A-Z ]+-----|\Z)", re.S)),
    ("arn", re.compile(r"\barn:aws[\w-]*:[^\s,;|`'\"()<>]+")),
    ("url", re.compile(r"\b(?:https?|wss?)://[^\s,;|`'\"()<>]+")),
    ("email", re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+")),
    ("token", re.compile(r"\b(?:k8s-aws-v1\.|ya29\.|eyJ)[\w.=+/-]+")),
    ("token", re.compile(r"(?i)\b(?:bearer|basic)\s+[\w.~+/=-]{8,}")),
    ("access-key", re.compile(r"\b(?:AKIA|ASIA|AROA|AIDA|ANPA|ABIA|ACCA)[A-Z0-9]{12,}\b")),
    ("node", re.compile(r"\b(?:ip-\d{1,3}(?:-\d{1,3}){3}|i-[0-9a-f]{6,})(?:\.[\w.-]+)?\b")),
    # GKE's names of machines and their groups, in which a known name may have been replaced before.
    ("node", re.compile(r"\bgke-(?:[a-z0-9-]|<[\w-]+>)*-[0-9a-f]{8}-[0-9a-z]{3,4}\b(?:\.[\w-]+)*")),
    ("host", re.compile(r"\b[\w-]+(?:\.[\w-]+)*\.(?:amazonaws\.com(?:\.cn)?|compute\.internal|ec2\.internal|goog)\b")),
    ("host", re.compile(r"\b[\w-]+(?:\.[\w-]+)*\.(?:googleapis\.com|internal|local)\b")),
    ("aws-id", re.compile(r"\b(?:subnet|sg|vpc|lt|eni|vol|ami|rtb|igw|nat|eipalloc|eks-cluster-sg)-[0-9a-f]{6,}\b")),
    ("uuid", re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")),
    ("ip", re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}(?:/\d{1,2})?\b")),
    ("ip", re.compile(rf"(?<![\w:])(?:{_HEX}:){{7}}{_HEX}|(?<![\w:])(?:{_HEX}(?::{_HEX})*)?::(?:(?:{_HEX}:)*{_HEX})?")),
    ("account", re.compile(r"(?<![\d.])\d{12}(?![\d.])")),
    ("secret", re.compile(rf"(?<![{_BASE64}])(?=[{_BASE64}]*\d)(?=[{_BASE64}]*[A-Za-z])[{_BASE64}]{{40,}}")),
)


def redacted(text: str, names: Mapping[str, str] | None = None) -> str:
    """Return the text with a word in angle brackets in place of each secret.

    `names` is what each known name is, by the name: `{"k8s-ml": "cluster"}`. Names shorter than three characters are
    left alone: they would stand in every second word.
    """
    for name in sorted(names or {}, key=len, reverse=True):
        if len(name) >= 3:
            text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", f"<{(names or {})[name]}>", text)
    for word, form in _FORMS:
        text = form.sub(f"<{word}>", text)
    return text


def report_of_run(
    ti: Any, *, pools: Sequence[GpuPool], image: str, budget: AcceptanceCost, steps: Mapping[str, Sequence[str]]
) -> tuple[str, bool]:
    """Return the report of a DAG run, and whether all of it has passed.

    Args:
        pools: The pools that were tried, rendered; the first one gives the report its name.
        budget: The bound that was said first.
        steps: The ids of each step's tasks, by the step's name.
    """
    ids = [task for tasks in steps.values() for task in tasks]
    states = ti.get_task_states(dag_id=ti.dag_id, task_ids=ids, run_ids=[ti.run_id]).get(ti.run_id, {})
    record = Record(
        steps=[_step(ti, name, tasks, states) for name, tasks in steps.items()],
        facts=_facts(ti, ids),
        lists=remains(*(pool.name for pool in pools), pool=pools[0]),
    )
    record.steps.append(_nothing_is_left(record.lists))
    text = markdown(record, pool=pools[0], image=image, budget=budget, at=SystemClock().now())
    return text, record.has_passed


def _step(ti: Any, name: str, tasks: Sequence[str], states: Mapping[str, str | None]) -> StepReport:
    report = StepReport(name, "passed" if all(states.get(task) == "success" for task in tasks) else "failed")
    for task in tasks:
        if states.get(task) != "success":
            report.lines.append(f"{task} is {states.get(task) or 'not begun'}")
        result = ti.xcom_pull(task_ids=task)
        timeline = ti.xcom_pull(task_ids=task, key="timeline") or ()
        if isinstance(result, Mapping):
            timeline = timeline or result.get("timeline") or ()
            if "desired" in result:
                report.phases.append(("scale down: machines gone", float(result["seconds"])))
        what = task.rpartition(".")[2].replace("_", " ")
        report.phases += [(f"{what}: {each['phase']}", float(each["seconds"])) for each in timeline]
    report.seconds = sum(seconds for _, seconds in report.phases)
    return report


def _facts(ti: Any, tasks: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for task in tasks:
        result = ti.xcom_pull(task_ids=task)
        if isinstance(result, Mapping):
            found |= {word: str(result[key]) for key, word in RESULT.items() if key in result}
            if result.get("served_by"):
                found["GPUs are handed out by"] = str(result["served_by"])
    return found


def _nothing_is_left(lists: Sequence[Listed]) -> StepReport:
    report = StepReport("nothing is left", "passed")
    try:
        check_nothing_left(lists, report)
    except NotAsExpected as error:
        report.outcome = "failed"
        report.lines.append(str(error))
    return report
