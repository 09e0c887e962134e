"""A gang whose nodes come by a ProvisioningRequest: none while there is room for two of three, and then all at once."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred
from kubernetes import client, config
from structlog.testing import capture_logs

from airflow_gpu_provider import GkeGpuPool
from airflow_gpu_provider.errors import OutOfStock
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.operators.gpu_pod import GpuPodOperator
from airflow_gpu_provider.scaling.apply.reconcile import open_pool
from airflow_gpu_provider.scaling.end.janitor import reap
from airflow_gpu_provider.sensors.scale_down import ScaleDownSensor
from gpu_sandbox.faults import Stockout
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.gpu_tasks import running
from tests.sandbox.running import context_of, eventually, line_of, meanwhile, run

pytest.importorskip("google.cloud.container_v1", reason="Google's libraries are not installed")

WAITS = (
    "the gang of 3 waits to be admitted: ProvisioningRequest train: Provisioned=False, ResourcePoolExhausted: Waiting"
    " for resources. Currently there are not enough resources available to fulfill the request"
)


class Night:
    """A pool for gangs of three, and what is there of it."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.api = config.new_client_from_config(str(sandbox.kubeconfig))
        self.core = client.CoreV1Api(self.api)
        self.pool = GkeGpuPool(
            name="queued",
            project_id=sandbox.google.project_id,
            location=sandbox.google.location,
            cluster_name=sandbox.cluster_name,
            machine_types=["g2-standard-4"],
            node_locations=[sandbox.zones[0]],
            max_nodes=3,
            scaling="autoscaler",
            flex_start=True,
            queued_provisioning=True,
        )

    def gang(self, script: str, **changes: Any) -> GpuPodOperator:
        usual: dict[str, Any] = {
            "task_id": "train",
            "image": "busybox:1.36",
            "name": "train",
            "random_name_suffix": False,
            "deferrable": False,
        }
        cmds = ["sh", "-c", script]
        return GpuPodOperator(gpu_pool=self.pool, nodes=3, cmds=cmds, **(usual | changes))

    @property
    def machines(self) -> list[Any]:
        groups = self.sandbox.google.node_pools.groups()
        return [member for group in groups if group.template.queued for member in group.members]

    @property
    def requests(self) -> list[str]:
        """The names of all ProvisioningRequests and PodTemplates."""
        objects = client.CustomObjectsApi(self.api)
        found = objects.list_cluster_custom_object("autoscaling.x-k8s.io", "v1", "provisioningrequests")["items"]
        templates = self.core.list_pod_template_for_all_namespaces().items
        return [each["metadata"]["name"] for each in found] + [each.metadata.name for each in templates]


@pytest.fixture
def night(gke_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Night]:
    for name, value in gke_sandbox.env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")
    monkeypatch.setattr("airflow_gpu_provider.scaling.wait.pool_updates.EVERY_FOR_GANGS", 1.0)
    night = Night(gke_sandbox)
    assert run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=night.pool, nodes=3))["nodes"] == []
    gke_sandbox.faults.add(Stockout(zone=gke_sandbox.zones[0], left=2))
    yield night
    gke_sandbox.faults.clear()
    released = run(ScaleDownSensor(task_id="scale_down", gpu_pool=night.pool))
    assert (released["nodes"], released["desired"]) == (0, 0)


def test_none_comes_while_one_lacks_and_then_all_at_once(night: Night) -> None:
    with capture_logs() as told:
        task = meanwhile(lambda: run(night.gang("echo up; sleep 3")))
        eventually(lambda: any(WAITS in line_of(entry) for entry in [*told]))
        assert night.machines == []
        assert night.requests == ["train", "train"]
        assert night.core.list_namespaced_pod("default").items == []
        night.sandbox.faults.clear()
        eventually(lambda: running(night.core, 3))
        assert len({member.created_at for member in night.machines}) == 1
        assert len(night.machines) == 3
        task.join(timeout=300)
    lines = [line_of(entry) for entry in told]
    assert [lines.count(f"[rank {rank}] up") for rank in range(3)] == [1, 1, 1]
    eventually(lambda: night.requests == [])


def test_what_does_not_come_in_time_is_out_of_stock_in_the_api_s_words_and_leaves_nothing(night: Night) -> None:
    with pytest.raises(
        OutOfStock, match=r"Job train got no 3 nodes in 5 s\. .*Provisioned=False, ResourcePoolExhausted"
    ):
        run(night.gang("true", schedule_timeout_seconds=5))
    eventually(lambda: night.requests == [])
    night.sandbox.faults.clear()
    assert night.machines == []


def test_what_a_killed_airflow_has_left_in_the_queue_goes_by_the_janitor(night: Night) -> None:
    task = night.gang("true", deferrable=True)
    with pytest.raises(TaskDeferred):
        task.execute(context_of(task))
    assert night.requests == ["train", "train"]
    reconciler = open_pool(night.pool, owner="tests", holder="tests", report=print)
    found, left = reap(reconciler, "tests", lambda _: True, timeout=timedelta(minutes=2), report=print)
    assert {each.kind for each in found.leftovers} == {"lease"}
    assert left == ()
    eventually(lambda: night.requests == [])
    assert night.machines == []
