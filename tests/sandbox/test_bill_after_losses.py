"""What a run cost that lost its machine twice: within 2 % of the times at which the cloud says its machines ran."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from google.auth.transport.requests import AuthorizedSession
from google.oauth2 import service_account
from kubernetes import client, config

from airflow_gpu_provider import EksGpuPool, GkeGpuPool
from airflow_gpu_provider.ledger.usage import read_machines
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.operators.gpu_pod import GpuPodOperator
from airflow_gpu_provider.operators.install_device_plugin import InstallDevicePluginOperator
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from airflow_gpu_provider.scaling.apply.reconcile import open_pool
from airflow_gpu_provider.sensors.scale_down import ScaleDownSensor
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox import aws_identity, documented_roles
from tests.sandbox.ec2_times import instances_of
from tests.sandbox.running import run

pytestmark = pytest.mark.nightly

NIGHT = "scheduled__2026-01-01T02:00:00+00:00"
TRAINS = 5.0
SCRIPT = f'echo "$AIRFLOW_GPU_ATTEMPT"; if [ "$AIRFLOW_GPU_ATTEMPT" != 3 ]; then exec sleep 600; fi; sleep {TRAINS:.0f}'


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")
    monkeypatch.setattr("airflow_gpu_provider.triggers.record.EVENT_AFTER_SECONDS", 0)


def enter(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in sandbox.env().items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def eks_pool(gpu_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[EksGpuPool]:
    enter(gpu_sandbox, monkeypatch)
    pool = EksGpuPool(
        name="lost",
        cluster_name=gpu_sandbox.cluster_name,
        region=gpu_sandbox.region,
        instance_types=["g6.xlarge"],
        capacity_types=["SPOT"],
        zones=[gpu_sandbox.zones[0]],
        max_nodes=1,
        price_per_hour=3600.0,
    )
    yield pool
    scale_down(pool)


@pytest.fixture
def gke_pool(gke_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[GkeGpuPool]:
    enter(gke_sandbox, monkeypatch)
    pool = GkeGpuPool(
        name="lost",
        project_id=gke_sandbox.google.project_id,
        location=gke_sandbox.google.location,
        cluster_name=gke_sandbox.cluster_name,
        machine_types=["g2-standard-4"],
        capacity_types=["SPOT"],
        node_locations=[gke_sandbox.zones[0]],
        max_nodes=1,
        price_per_hour=3600.0,
    )
    yield pool
    scale_down(pool)


def scale_down(pool: GpuPool) -> dict[str, Any]:
    usage: dict[str, Any] = run(ScaleDownSensor(task_id="zero", gpu_pool=pool), run_id=NIGHT)["usage"]
    return usage


class Losses:
    """Takes the machine of each of the first two attempts, as spot is taken, when it has trained for some seconds."""

    def __init__(self, pool: GpuPool, take: Callable[[str], object]) -> None:
        self._take = take
        self._of_the_pool = {"label_selector": f"{POOL_LABEL}={pool.name}"}  # others' may have lost their nodes
        self._core = client.CoreV1Api(config.new_client_from_config(os.environ["KUBECONFIG"]))
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="losses", daemon=True)
        self.nodes: list[str] = []

    def __enter__(self) -> Losses:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(timeout=120)

    def _watch(self) -> None:
        seen: set[str] = set()
        while len(seen) < 2 and not self._ended.wait(0.1):
            for pod in self._core.list_namespaced_pod("default", **self._of_the_pool).items:
                if pod.status.phase != "Running" or pod.metadata.uid in seen:
                    continue
                running = pod.status.container_statuses[0].state.running
                if running and (datetime.now(UTC) - running.started_at).total_seconds() > TRAINS:
                    seen.add(pod.metadata.uid)
                    self.nodes.append(pod.spec.node_name)
                    self._take(self._core.read_node(pod.spec.node_name).spec.provider_id.rpartition("/")[2])


def train(pool: GpuPool, take: Callable[[str], object], *, deferrable: bool) -> float:
    """Return how many seconds the training took, its losses and waits included."""
    run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, nodes=1, deferrable=False), run_id=NIGHT)
    run(InstallDevicePluginOperator(task_id="plugin", gpu_pool=pool, deferrable=False), run_id=NIGHT)
    task = GpuPodOperator(
        task_id="train",
        gpu_pool=pool,
        gpus=1,
        image="busybox:1.36",
        cmds=["sh", "-c", SCRIPT],
        on_preemption="resume",
        termination_grace_period=1,
        deferrable=deferrable,
    )
    began = time.monotonic()
    with Losses(pool, take) as losses:
        run(task, run_id=NIGHT)
    assert len(losses.nodes) == 2
    return time.monotonic() - began


@pytest.mark.parametrize("deferrable", [False, True], ids=["blocking", "deferred"])
def test_two_losses_on_eks(
    eks_pool: EksGpuPool, gpu_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, deferrable: bool
) -> None:
    """The second machine comes by itself, and goes before anybody looks at the pool."""
    pool = replace(eks_pool, name=f"lost-{'deferred' if deferrable else 'blocking'}")
    took = train(pool, gpu_sandbox.aws.interrupt_spot, deferrable=deferrable)
    usage = scale_down(pool)

    ran = instances_of(pool.name, gpu_sandbox.aws)
    assert len(ran) == usage["machines"] == 3
    seconds = sum(each.seconds for each in ran)
    assert usage["at_least"] is None
    assert sum(usage["node_seconds"].values()) == pytest.approx(seconds, rel=0.02, abs=3)
    assert usage["cost"]["total"] == pytest.approx(seconds, rel=0.02, abs=3)
    assert usage["node_seconds"]["working"] > 2.5 * TRAINS, "the lost pods' work is work"
    assert scale_down(pool) == usage, "another try says the same"

    of_cluster = documented_roles.of_cluster(gpu_sandbox, "lost*")
    policy = documented_roles.policy("eks-full.json", without=["ec2:DescribeInstances"], **of_cluster)
    key = gpu_sandbox.aws.add_identity(f"bill-{deferrable}", policy=policy)
    monkeypatch.setitem(gpu_sandbox.authenticator.access_entries, key.arn, ["system:masters"])
    connection = aws_identity.connection(gpu_sandbox, key)
    monkeypatch.setenv("AIRFLOW_CONN_REFUSED", json.dumps(connection))
    least = scale_down(replace(pool, aws_conn_id="refused"))
    assert "ec2:DescribeInstances" in least["at_least"]
    assert least["node_seconds"]["booting"] <= usage["node_seconds"]["booting"], "machines that nobody saw boot"
    # A pod counts until its loss is noticed, which takes a busy machine longer, and in the API's whole seconds.
    assert 2.5 * TRAINS < least["node_seconds"]["working"] < took + len(ran)


def seconds_on_gke(sandbox: Sandbox) -> list[float]:
    """Return how long the instances of the sandbox's spot pools ran, as the operations of their zone say."""
    scopes = ["https://www.googleapis.com/auth/cloud-platform"]
    credentials = service_account.Credentials.from_service_account_info(sandbox.google.keyfile(), scopes=scopes)
    zone = f"{sandbox.google.endpoint_url}/compute/v1/projects/{sandbox.google.project_id}/zones/{sandbox.zones[0]}"
    answer = AuthorizedSession(credentials).get(f"{zone}/operations")
    times: dict[str, dict[str, datetime]] = {}
    for operation in answer.json()["items"]:
        if "/instances/" in operation["targetLink"] and "-lost-" in operation["targetLink"]:
            is_start = operation["operationType"] == "insert"
            at = operation["insertTime" if is_start else "endTime"]
            times.setdefault(operation["targetId"], {})["start" if is_start else "end"] = datetime.fromisoformat(at)
    return [(each["end"] - each["start"]).total_seconds() for each in times.values()]


def test_two_losses_on_gke(gke_pool: GkeGpuPool, gke_sandbox: Sandbox) -> None:
    """A machine that is preempted comes back with its name: three machines of one name, with gaps in between."""
    train(gke_pool, gke_sandbox.google.preempt, deferrable=True)
    usage = scale_down(gke_pool)

    ran = seconds_on_gke(gke_sandbox)
    assert len(ran) == usage["machines"] == 3
    assert usage["at_least"] is None
    assert sum(usage["node_seconds"].values()) == pytest.approx(sum(ran), rel=0.02, abs=3)
    assert usage["cost"]["total"] == pytest.approx(sum(ran), rel=0.02, abs=3)
    assert usage["node_seconds"]["working"] > 2.5 * TRAINS
    reconciler = open_pool(gke_pool, owner="", holder="a test", report=print)
    assert len({machine.id for machine in read_machines(reconciler.api, gke_pool.name)}) == 1
