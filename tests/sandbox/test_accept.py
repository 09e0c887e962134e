"""`airflow gpu accept` on the sandbox's clouds: all steps pass, the report says what happened, and nothing is left."""

from __future__ import annotations

import json
import os
import signal
import stat
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kubernetes import config

from airflow_gpu_provider import EksGpuPool, GkeGpuPool
from airflow_gpu_provider.acceptance.command import FAILED, NOT_RUN, PASSED, accept_pool
from airflow_gpu_provider.cluster.api.rest import server_side_apply
from airflow_gpu_provider.pools import GpuPool
from gpu_sandbox.nodes import Image
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox import aws_identity, documented_roles
from tests.sandbox.running import eventually, until_allowed

pytestmark = pytest.mark.nightly

IMAGE = "cuda-sample:vectoradd"
SPEED = 60.0
GROUP = "airflow-gpu-provider"
LISTS = ("compute.instanceGroupManagers.list", "compute.instances.list")  # docs/acceptance.md


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """NVIDIA's sample, as far as it can be played without a GPU: it says that it has added."""
    folder = tmp_path_factory.mktemp("bin")
    sample = folder / "vectorAdd"
    sample.write_text("#!/bin/sh\necho '[Vector addition of 50000 elements]'\necho 'Test PASSED'\n")
    sample.chmod(sample.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return Image(pattern="cuda-sample:*", path_prefix=str(folder))


@pytest.fixture(scope="module")
def sandbox(request: pytest.FixtureRequest, image: Image) -> Iterator[Sandbox]:
    """One cloud in one pace; the real one with the documented roles, and no more but the lists that the proof takes."""
    platform, _, pace = request.param.partition("-")
    # Another sandbox of AWS may be in this process, with the usual account.
    settings: dict[str, Any] = {"account_id": "456789012345"} if platform == "eks" else {}
    with Sandbox(
        platform=platform, pace=pace, speed=SPEED, seed=5, images=(image,), progress=print, **settings
    ) as sandbox:
        yield sandbox


@pytest.fixture
def airflow(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process as an Airflow on the sandbox."""
    for name, value in sandbox.env().items():
        monkeypatch.setenv(name, value)
    if sandbox.pace.name != "real":
        return
    connection, user = _eks_role(sandbox) if sandbox.platform == "eks" else _gke_role(sandbox)
    name = "AWS_DEFAULT" if sandbox.platform == "eks" else "GOOGLE_CLOUD_DEFAULT"
    monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(connection))
    sandbox.authenticator.access_entries[user] = [GROUP]
    administrator = config.new_client_from_config(str(sandbox.kubeconfig))
    for manifest in documented_roles.role_manifests(*documented_roles.FULL_ROLES, "prefetch.yaml"):
        server_side_apply(administrator, manifest)
    until_allowed(administrator, groups=[GROUP], namespace="airflow-gpu-provider", resource="leases")


def _eks_role(sandbox: Sandbox) -> tuple[dict[str, Any], str]:
    files = ("eks-full.json", "eks-launch-template.json", "eks-owned-templates.json")
    policy = documented_roles.policy(
        *files, **documented_roles.of_cluster(sandbox, "accept-train-gpu", "fallback-train-gpu")
    )
    key = sandbox.aws.add_identity("airflow", policy=policy)
    return aws_identity.connection(sandbox, key), key.arn


def _gke_role(sandbox: Sandbox) -> tuple[dict[str, Any], str]:
    permissions = [*documented_roles.google_role("gke-full.json"), *LISTS]
    account = sandbox.google.add_identity("airflow", permissions=permissions)
    return sandbox.google.connection(account), account.email


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
        disk={"size": 150, "throughput": 500},
    )


def accepted(sandbox: Sandbox, report: Path, **changes: Any) -> tuple[int, list[str]]:
    said: list[str] = []
    arguments: dict[str, Any] = {
        "image": IMAGE,
        "price": None,
        "night": timedelta(minutes=45),
        "pod_namespace": "default",
        "report": report,
        "may_cost": True,
        "echo": said.append,
    }
    return accept_pool(pool_of(sandbox), **(arguments | changes)), said


@pytest.mark.usefixtures("airflow")
@pytest.mark.parametrize("sandbox", ["eks-quick"], indirect=True)
def test_it_says_what_it_may_cost_and_changes_nothing(sandbox: Sandbox, tmp_path: Path) -> None:
    status, said = accepted(sandbox, tmp_path / "report.md", may_cost=False)
    assert status == NOT_RUN
    assert said[0].startswith("At most 3.22 USD: 3 nights of one node, each 80 minutes")
    assert not (tmp_path / "report.md").exists()


@pytest.mark.usefixtures("airflow")
@pytest.mark.parametrize("sandbox", ["eks-real", "gke-real"], indirect=True)
def test_all_steps_pass(sandbox: Sandbox, tmp_path: Path) -> None:
    report = tmp_path / "report.md"
    status, said = accepted(sandbox, report)
    text = report.read_text()
    assert status == PASSED, "\n".join([*said, text])
    assert sandbox.cluster_name not in text
    for row in (
        "| a night from zero | ensure: ",
        "| a second night, whose wait is killed | pod: ",
        "| a first candidate that does not exist | scale down: ",
        "| instances, by EC2 | nothing |" if sandbox.platform == "eks" else "| node pools, by GKE | nothing |",
        "| nodes, by the API server | nothing |",
    ):
        assert row in text, text


@pytest.mark.usefixtures("airflow")
@pytest.mark.parametrize("sandbox", ["gke-quick"], indirect=True)
def test_told_to_stop_it_deletes_what_it_made(sandbox: Sandbox, tmp_path: Path) -> None:
    """In the middle of a night: the steps end, the end does not, and a second signal changes nothing."""

    def stop_once_a_node_comes() -> None:
        eventually(lambda: [group for group in sandbox.google.node_pools.groups() if group.members])
        os.kill(os.getpid(), signal.SIGTERM)

    def echo(line: str) -> None:
        said.append(line)
        if line.startswith("delete ..."):
            os.kill(os.getpid(), signal.SIGINT)

    said: list[str] = []
    thread = threading.Thread(target=stop_once_a_node_comes)
    thread.start()
    status, _ = accepted(sandbox, tmp_path / "report.md", echo=echo)
    thread.join()
    text = (tmp_path / "report.md").read_text()
    assert status == FAILED
    for row in ("a night from zero | failed", "wait is killed | skipped", "delete | passed", "is left | passed"):
        assert row in text, text
    assert "Cleaning up; this ends by itself." in said
    assert not [group for group in sandbox.google.node_pools.groups() if group.members]
