"""What each ring runs: its tiers, in order; those in one tuple side by side. `.ci/run` is `test`, then `landing`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

BIN = ".venv/bin"
Command = tuple[str, ...]

JOBS = os.environ.get("JOBS", "2")
# Each with up to three control planes, 2 GB at most. On two cores four leave a third of the CPU time idle, nine a
# twentieth.
SANDBOXES = os.environ.get("SANDBOXES", "9")
# Each with a sandbox and an Airflow, 2.5 GB. Two leave a third of the CPU time idle, three a twentieth; a scheduler
# that is ten seconds late, as with more, fails tasks that have been deferred (apache/airflow#67287).
AIRFLOWS = os.environ.get("AIRFLOWS", "3")

# Each with a sandbox and a Karpenter.
KARPENTERS = os.environ.get("KARPENTERS", "4")


@dataclass(frozen=True, kw_only=True)
class Tier:
    """Commands, and then tests, that stand or fall together.

    Attributes:
        commands: Run in order before the tests; one that fails ends the tier.
        tests: pytest's arguments; none for a tier of commands alone.
        wrapper: What the tests' process is started by.
        needs: A program without which the tier is left out, and says so.
    """

    name: str
    title: str
    commands: Sequence[Command] = ()
    tests: Sequence[str] = ()
    wrapper: Command = ()
    needs: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)


def _workers(count: str) -> tuple[str, ...]:
    return ("-n", count, "--dist", "loadfile")


LINT = Tier(
    name="lint",
    title="ruff, mypy, import-linter, deptry; no broken link in the documentation",
    commands=(
        (f"{BIN}/ruff", "check", "."),
        (f"{BIN}/ruff", "format", "--check", "."),
        (f"{BIN}/mypy",),
        (f"{BIN}/lint-imports", "--no-cache"),
        (f"{BIN}/deptry", "airflow_gpu_provider"),
        (f"{BIN}/deptry", "sandbox/gpu_sandbox", "--config", "sandbox/pyproject.toml"),
        (f"{BIN}/mkdocs", "build", "--strict", "--quiet"),
    ),
    env={"NO_MKDOCS_2_WARNING": "1"},
)
UNIT = Tier(name="unit", title="pure logic", tests=("tests/unit", *_workers(JOBS)))
DRY_NIGHTS = Tier(
    name="dry-nights",
    title="a block's states, decided by Airflow's own DagRun.update_state",
    tests=("tests/dry_nights", *_workers(JOBS)),
)
# A fifth of them in `make test`, the others in the nightly ring.
POSTGRESQL = Tier(
    name="postgresql",
    title="dry nights on PostgreSQL, and what of pods' bytes only it refuses",
    tests=("tests/dry_nights", *_workers(JOBS)),
    env={"DRY_NIGHTS_DATABASE": "postgresql"},
)
SANDBOX = Tier(
    name="sandbox",
    title="the provider against a real Kubernetes control plane",
    tests=("tests/sandbox", *_workers(SANDBOXES)),
)
AIRFLOW = Tier(
    name="airflow",
    title="nights under a real scheduler and triggerer",
    tests=("tests/airflow", "--ignore", "tests/airflow/chaos", *_workers(AIRFLOWS)),
)
OF_SANDBOX = Tier(
    name="of-sandbox",
    title="the sandbox itself",
    tests=("sandbox/tests", "--ignore", "sandbox/tests/kubelet", *_workers(SANDBOXES)),
)
KUBELET = Tier(
    name="kubelet",
    title="process nodes against a real kubelet with containerd, as root",
    commands=(
        (f"{BIN}/python", "-m", "sandbox.tests.kubelet.needs"),
        (f"{BIN}/python", "-m", "sandbox.tests.kubelet.programs"),
    ),
    tests=("sandbox/tests/kubelet",),
    # In a network of its own: Chromium fails its requests when an interface of its network comes or goes.
    wrapper=("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"),
)
BROWSER = Tier(name="browser", title="the page in Airflow's web UI, by Chromium", tests=("tests/browser",))
CHAOS = Tier(name="chaos", title="nights that are disturbed", tests=("tests/airflow/chaos",))
UI = Tier(
    name="ui",
    title="the page's bundle is the one that its sources give",
    commands=(("make", "--no-print-directory", "ui-check"),),
    needs="npm",
)
ENGINES = Tier(
    name="engines",
    title="with the real JobSet, Trainer and Kueue",
    commands=((f"{BIN}/python", "-m", "gpu_sandbox.engines"),),
    tests=("tests/engines",),
)
# Karpenter waits for most of the time, by its own clock.
KARPENTER = Tier(
    name="karpenter",
    title="with the real Karpenter",
    commands=((f"{BIN}/python", "-m", "gpu_sandbox.karpenter"),),
    tests=("tests/karpenter", *_workers(KARPENTERS)),
)
COMPAT = Tier(
    name="compat",
    title="unit and operators with the oldest packages, those of Composer, MWAA and Astro, and Airflow 3.4",
    commands=(("make", "--no-print-directory", "--keep-going", "compat"),),
)

Ring = Literal["test", "landing", "nightly"]
_TEST: tuple[tuple[Tier, ...], ...] = (
    (LINT,),
    (UNIT,),
    (DRY_NIGHTS,),
    (POSTGRESQL,),
    (SANDBOX,),
    (AIRFLOW,),
)
# Browser, kubelet and chaos each wait for most of their time: for pages, by a kubelet's clock, for nights.
_LANDING: tuple[tuple[Tier, ...], ...] = ((OF_SANDBOX,), (BROWSER, KUBELET, CHAOS), (UI,))
RINGS: Mapping[Ring, tuple[tuple[Tier, ...], ...]] = {
    "test": _TEST,
    "landing": _LANDING,
    "nightly": (*_TEST, *_LANDING, (ENGINES,), (KARPENTER,), (COMPAT,)),
}
TIERS: Mapping[str, Tier] = {tier.name: tier for group in RINGS["nightly"] for tier in group}
