"""`airflow gpu accept` on the sandbox's clouds: all steps pass, the report says what happened, and nothing is left."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_gpu_provider import acceptance
from airflow_gpu_provider.acceptance.command import FAILED, NOT_RUN, PASSED, accept_pool
from airflow_gpu_provider.acceptance.expected import Expected
from airflow_gpu_provider.api_calls import ApiCall, told_to
from airflow_gpu_provider.pools import EksGpuPool, GkeGpuPool, GpuPool
from airflow_gpu_provider.sandbox.aws import AwsTimings
from airflow_gpu_provider.sandbox.google import GoogleTimings
from airflow_gpu_provider.sandbox.nodes import Image
from airflow_gpu_provider.sandbox.sandbox import Sandbox
from tests.sandbox.running import eventually

IMAGE = "cuda-sample:vectoradd"
RECORD = Path(acceptance.__file__).parent / "as_the_sandbox_shows.json"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """NVIDIA's sample, as far as it can be played without a GPU: it says that it has added."""
    folder = tmp_path_factory.mktemp("bin")
    sample = folder / "vectorAdd"
    sample.write_text("#!/bin/sh\necho '[Vector addition of 50000 elements]'\necho 'Test PASSED'\n")
    sample.chmod(sample.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return Image(pattern="cuda-sample:*", path_prefix=str(folder))


@pytest.fixture(scope="module")
def eks(image: Image) -> Iterator[Sandbox]:
    with Sandbox(images=(image,), timings=AwsTimings(), progress=print) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def gke(image: Image) -> Iterator[Sandbox]:
    timings = GoogleTimings(node_pool_create=0.3, patience=1.0, driver=0.5, launch_retry=1.0)
    with Sandbox(platform="gke", images=(image,), boot_seconds=0.5, timings=timings, progress=print) as sandbox:
        yield sandbox


def pool_of(sandbox: Sandbox) -> GpuPool:
    if sandbox.platform == "gke":
        return GkeGpuPool(
            name="train-gpu",
            project_id=sandbox.google.project_id,
            location=sandbox.google.location,
            cluster_name=sandbox.cluster_name,
            machine_types=["g2-standard-4"],
            node_locations=["us-central1-a"],
            max_nodes=4,
            price_per_hour=0.7111,
        )
    return EksGpuPool(
        name="train-gpu",
        cluster_name=sandbox.cluster_name,
        region=sandbox.region,
        instance_types=["g6.xlarge"],
        zones=sandbox.zones[:1],
        max_nodes=4,
        price_per_hour=0.8048,
    )


def accepted(sandbox: Sandbox, report: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> tuple[int, list[str]]:
    for name, value in sandbox.env().items():
        monkeypatch.setenv(name, value)
    said: list[str] = []
    arguments: dict[str, Any] = {
        "image": IMAGE,
        "price": None,
        "night": timedelta(minutes=45),
        "pod_namespace": "default",
        "report": report,
        "may_cost": True,
        "say": said.append,
    }
    return accept_pool(pool_of(sandbox), **(arguments | changes)), said


def test_it_says_what_it_may_cost_and_changes_nothing(
    eks: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, said = accepted(eks, tmp_path / "report.md", monkeypatch, may_cost=False)
    assert status == NOT_RUN
    assert said[0].startswith("At most 4.29: 4 nights of one node, each 80 minutes")
    assert not (tmp_path / "report.md").exists()


@pytest.mark.parametrize("cloud", ["eks", "gke"])
def test_all_steps_pass(
    cloud: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox: Sandbox = request.getfixturevalue(cloud)
    report, calls = tmp_path / "report.md", Counter[ApiCall]()
    with told_to(lambda call: calls.update((call,))):
        status, said = accepted(sandbox, report, monkeypatch)
    text = report.read_text()
    assert status == PASSED, "\n".join([*said, text])
    assert sandbox.cluster_name not in text
    shown = Expected(
        calls=frozenset(f"{each.api} {each.operation}" for each in calls),
        errors=frozenset(f"{each.api} {each.operation}: {each.error}" for each in calls if each.error),
        phases=frozenset(re.findall(r"\| ((?:ensure|device plugin|pod|scale down): [^|]+) \|", text)),
    )
    assert shown.phases
    if os.environ.get("RECORD_ACCEPTANCE"):
        record(cloud, shown)


def record(cloud: str, shown: Expected) -> None:
    """Add what was shown to what is recorded: not each night takes every way."""
    everything = json.loads(RECORD.read_text())
    before = Expected.of(everything.get(cloud, {}))
    both = {name: sorted({*before.to_json()[name], *found}) for name, found in shown.to_json().items()}
    RECORD.write_text(json.dumps({**everything, cloud: both}, indent=1) + "\n")


def test_told_to_stop_it_deletes_what_it_made(gke: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of a night: the steps end, the end does not, and a second signal changes nothing."""

    def stop_once_a_node_comes() -> None:
        eventually(lambda: [group for group in gke.google.node_pools.groups() if group.members], seconds=120)
        os.kill(os.getpid(), signal.SIGTERM)
        eventually(lambda: any(line.startswith("delete ...") for line in said), seconds=120)
        os.kill(os.getpid(), signal.SIGINT)

    said: list[str] = []
    thread = threading.Thread(target=stop_once_a_node_comes)
    thread.start()
    status, _ = accepted(gke, tmp_path / "report.md", monkeypatch, say=said.append)
    thread.join()
    text = (tmp_path / "report.md").read_text()
    assert status == FAILED
    for row in ("a night from zero | failed", "groups of others | skipped", "delete | passed", "is left | passed"):
        assert row in text, text
    assert "What was made is being removed; it ends by itself." in said
    assert not [group for group in gke.google.node_pools.groups() if group.members]
