"""Gangs whose nodes GKE brings all at once, by the requests of the real Kueue, with the queue of docs/kueue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config, dynamic
from structlog.testing import capture_logs

from airflow_gpu_provider import GkeGpuPool
from airflow_gpu_provider.errors import GpuError, OutOfStock, PoolSpecError
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.operators.gpu_pod import GpuPodOperator
from airflow_gpu_provider.reports.kueue_queues import KueueQueues
from airflow_gpu_provider.sensors.scale_down import ScaleDownSensor
from gpu_sandbox.autoscaler.timings import AutoscalerTimings
from gpu_sandbox.faults import Stockout
from gpu_sandbox.google import GoogleTimings
from gpu_sandbox.sandbox import Sandbox
from tests.engines.test_engines import create
from tests.engines.test_kueue import Running, said
from tests.sandbox.running import eventually, run

pytest.importorskip("google.cloud.container_v1", reason="Google's libraries are not installed")

FILE = Path(__file__).parents[2] / "docs/kueue/queued-provisioning.yaml"
RETRIES = "{backoffLimitCount: 10, backoffBaseSeconds: 60, backoffMaxSeconds: 600}"
LABEL = "autoscaling.gke.io/provisioning-request"
SPEED = 40


class Night:
    """A pool of at most `max_nodes` nodes with its queue, and what is there of it."""

    def __init__(self, sandbox: Sandbox, name: str, max_nodes: int, retries: int = 20, quota: int = 0) -> None:
        self.sandbox, self.name = sandbox, name
        self.api = config.new_client_from_config(str(sandbox.kubeconfig))
        self.core = client.CoreV1Api(self.api)
        self.pool = GkeGpuPool(
            name=name,
            project_id=sandbox.google.project_id,
            location=sandbox.google.location,
            cluster_name=sandbox.cluster_name,
            machine_types=["g2-standard-4"],
            node_locations=[sandbox.zones[0]],
            max_nodes=max_nodes,
            scaling="autoscaler",
            flex_start=True,
            queued_provisioning=True,
        )
        quick = f"{{backoffLimitCount: {retries}, backoffBaseSeconds: 1, backoffMaxSeconds: 2}}"
        manifests = FILE.read_text().replace("train-gpu", name).replace("team-a", name)
        manifests = manifests.replace(RETRIES, quick).replace("nominalQuota: 32", f"nominalQuota: {quota or max_nodes}")
        for manifest in manifests.split("---\n"):
            create(dynamic.DynamicClient(self.api), manifest)
        assert run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=self.pool, nodes=max_nodes))["nodes"] == []

    def gang(self, task_id: str, **changes: Any) -> Running:
        """Start a gang of two, which runs for some seconds."""
        cmds = ["sh", "-c", "echo up; sleep 4"]
        usual = {"image": "busybox:1.36", "cmds": cmds, "nodes": 2, "queue_name": self.name, "deferrable": False}
        return Running(GpuPodOperator(task_id=task_id, gpu_pool=self.pool, **(usual | changes)))

    def nodes_of(self, task_id: str) -> set[str]:
        """The nodes of both pods of a gang, once they run; those of its own request alone."""

        def running() -> set[str]:
            pods = self.core.list_namespaced_pod("default", label_selector=f"task_id={task_id}").items
            on = {pod.spec.node_name for pod in pods if pod.status.phase == "Running"}
            return on if len(on) == 2 else set()

        found: set[str] = eventually(running)
        assert len({self.core.read_node(name).metadata.labels[LABEL] for name in found}) == 1
        return found

    @property
    def machines(self) -> list[Any]:
        """The pool's machines that are there, and paid for."""
        groups = self.sandbox.google.node_pools.groups()
        return [each for group in groups if group.template.queued for each in group.members if each.status]

    @property
    def left(self) -> list[str]:
        """What is left of gangs: Jobs, requests, and their templates."""
        objects = client.CustomObjectsApi(self.api)
        found = objects.list_cluster_custom_object("autoscaling.x-k8s.io", "v1", "provisioningrequests")["items"]
        others = [
            *client.BatchV1Api(self.api).list_job_for_all_namespaces().items,
            *self.core.list_pod_template_for_all_namespaces().items,
        ]
        return [each["metadata"]["name"] for each in found] + [each.metadata.name for each in others]

    def end(self) -> None:
        """Scale down: nothing is left, and GKE ends the idle nodes."""
        self.sandbox.faults.clear()
        released = run(ScaleDownSensor(task_id="scale_down", gpu_pool=self.pool))
        assert released["desired"] == 0
        eventually(lambda: self.left == [])
        eventually(lambda: self.machines == [])


@pytest.fixture(scope="module")
def gke() -> Iterator[Sandbox]:
    """A GKE with Kueue, whose autoscaler is forty times as quick: a request without room fails after three seconds."""
    timings = GoogleTimings(node_pool_create=0.3, patience=1.0, driver=0.5, launch_retry=1.0, stale=0.0)
    with Sandbox(
        platform="gke",
        cluster_name="queued",
        engines=("kueue",),
        boot_seconds=0.5,
        timings=timings,
        autoscaler_timings=AutoscalerTimings().scaled(SPEED),
        progress=print,
    ) as sandbox:
        yield sandbox


@pytest.fixture
def start(gke: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return what makes a night, which ends with the test."""
    for name, value in gke.env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")
    nights: list[Night] = []

    def start(*what: Any, **how: Any) -> Night:
        nights.append(Night(gke, *what, **how))
        return nights[-1]

    yield start
    for night in nights:
        night.end()


@pytest.mark.parametrize("deferrable", [False, True], ids=["blocking", "deferred"])
def test_none_comes_while_one_lacks_and_then_both_at_once(start: Any, deferrable: bool) -> None:
    night = start(f"whole-{deferrable}".lower(), 2)
    found = list(KueueQueues.read(night.api, "default").examine(night.pool))
    assert [result for result, *_ in found if result == "problem"] == []
    night.sandbox.faults.add(Stockout(left=1))
    with capture_logs() as log:
        gang = night.gang("train", deferrable=deferrable)
        eventually(lambda: any("Provisioned=False, ResourcePoolExhausted: Waiting" in line for line in said([*log])))
        assert night.machines == []
        night.sandbox.faults.clear()
        night.nodes_of("train")
        assert len(night.machines) == 2
        assert gang.ended() is None
    assert [said(log).count(f"[rank {rank}] up") for rank in (0, 1)] == [1, 1]


def test_one_after_the_other_where_there_is_room_for_one(start: Any) -> None:
    """Its queue has quota for both: the second one's request fails while the first one's nodes are there."""
    night = start("one", 2, quota=4)
    first = night.gang("first")
    of_first = night.nodes_of("first")
    with capture_logs() as log:
        second = night.gang("second")
        assert first.ended() is None
        assert not of_first & night.nodes_of("second")
        assert len(night.machines) == 2
        assert second.ended() is None
    assert any("-one-2: " in line and "NodepoolSizeReached" in line for line in said(log))


def test_two_at_once_run_on_their_own_nodes(start: Any) -> None:
    night = start("two", 4)
    gangs = [night.gang(name) for name in ("left", "right")]
    assert len(night.nodes_of("left") | night.nodes_of("right")) == 4
    assert len(night.machines) == 4
    assert [gang.ended() for gang in gangs] == [None, None]


def test_a_request_that_has_failed_is_made_again(start: Any) -> None:
    night = start("again", 2)
    night.sandbox.faults.add(Stockout(code="QUEUING_INFEASIBLE_NO_CAPACITY"))
    with capture_logs() as log:
        gang = night.gang("train")
        words = ("QueuingInfeasibleNoCapacity", "NodepoolInBackoff")  # what a request meets that comes too early
        eventually(lambda: any(each in line for line in said([*log]) for each in words))
        night.sandbox.faults.clear()
        assert gang.ended() is None


@pytest.mark.parametrize(
    ("code", "retries", "error", "words"),
    [
        ("QUEUING_INFEASIBLE_NO_CAPACITY", 0, OutOfStock, "its Workload in queue no-stock is deactivated"),
        ("UNSUPPORTED_OPERATION", 20, PoolSpecError, "Failed=True, UnsupportedOperation"),
    ],
    ids=["no-stock", "no-spec"],
)
def test_what_is_rejected_ends_the_try_by_its_cause(
    request: pytest.FixtureRequest, start: Any, code: str, retries: int, error: type[GpuError], words: str
) -> None:
    night = start(request.node.callspec.id, 2, retries=retries)
    night.sandbox.faults.add(Stockout(code=code))
    found = night.gang("train").ended()
    assert type(found) is error
    assert words in str(found)
    eventually(lambda: night.left == [])
    assert night.machines == []
