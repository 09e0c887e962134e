"""scaling="autoscaler" against the sandbox's stand-in: whole nights from the tags alone, and what goes wrong."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import boto3
import pytest

from airflow_gpu_provider import EksGpuPool, GpuPodOperator
from airflow_gpu_provider.clouds.base import platform_for
from airflow_gpu_provider.cluster.model.autoscaler_status import STATUS_NAME, STATUS_NAMESPACE
from airflow_gpu_provider.errors import OutOfStock
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.operators.install_device_plugin import InstallDevicePluginOperator
from airflow_gpu_provider.scaling.apply.reconcile import open_pool
from airflow_gpu_provider.sensors.scale_down import ScaleDownSensor
from gpu_sandbox.faults import Stockout
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.running import context_of, eventually, run

_names = (f"scaled-{number}" for number in itertools.count())
GPUS_TAG = "k8s.io/cluster-autoscaler/node-template/resources/nvidia.com/gpu"


class Night:
    """One pool, its operators, and what an autoscaler sees of it."""

    def __init__(self, cluster_name: str, region: str, **fields: Any) -> None:
        spec: dict[str, Any] = {
            "name": next(_names),
            "cluster_name": cluster_name,
            "region": region,
            "instance_types": ["g6.xlarge"],
            "zones": [f"{region}a"],
            "max_nodes": 1,
            "scaling": "autoscaler",
        }
        self.pool = EksGpuPool(**{**spec, **fields})
        self.platform = platform_for(self.pool)
        self.api: Any = self.platform.cluster_access().api_client()
        self.reconciler = open_pool(self.pool, owner="tests", holder="tests", report=print)

    def ensure(self, **arguments: Any) -> dict[str, Any]:
        usual = {"task_id": "ensure", "gpu_pool": self.pool, "timeout": timedelta(seconds=90)}
        result: dict[str, Any] = run(EnsureGpuPoolOperator(**{**usual, **arguments}))
        return result

    def plugin(self) -> dict[str, Any]:
        result: dict[str, Any] = run(InstallDevicePluginOperator(task_id="plugin", gpu_pool=self.pool))
        return result

    def train(self, **arguments: Any) -> Any:
        command = ["sh", "-c", "echo '{\"trained\": true}' > /airflow/xcom/return.json"]
        train = GpuPodOperator(
            task_id="train",
            gpu_pool=self.pool,
            image="busybox:1.36",
            cmds=command,
            do_xcom_push=True,
            **arguments,
        )
        return run(train, context_of(train))

    def scale_down(self) -> dict[str, Any]:
        result: dict[str, Any] = run(ScaleDownSensor(task_id="scale_down", gpu_pool=self.pool))
        return result

    def break_tag(self, key: str, value: str) -> None:
        """Somebody changes what the autoscaler reads of the first group."""
        name = self.platform.observe()[0].autoscaler_name
        tag = {"ResourceId": name, "ResourceType": "auto-scaling-group", "Key": key, "Value": value}
        boto3.client("autoscaling").create_or_update_tags(Tags=[{**tag, "PropagateAtLaunch": False}])


@pytest.fixture
def enter(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Points this test's clients at a sandbox."""
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")
    # Triggers send their events at once: there is no scheduler here to be patient for.
    monkeypatch.setattr("airflow_gpu_provider.triggers.record.EVENT_AFTER_SECONDS", 0)

    def enter(sandbox: Any) -> None:
        for name, value in sandbox.env().items():
            monkeypatch.setenv(name, value)

    return enter


@pytest.fixture
def nights(gpu_sandbox: Sandbox, enter: Callable[[Any], None]) -> Iterator[Callable[..., Night]]:
    enter(gpu_sandbox)
    eventually(lambda: _reports(gpu_sandbox))  # a sandbox is up a moment before its autoscaler has looked
    opened: list[Night] = []

    def open_night(**fields: Any) -> Night:
        opened.append(Night(gpu_sandbox.cluster_name, gpu_sandbox.region, **fields))
        return opened[-1]

    yield open_night
    for night in opened:
        for lease in night.reconciler.snapshot().leases:
            night.reconciler.delete_demand_and_reconcile(lease.key)


def _reports(sandbox: Sandbox) -> bool:
    path = f"/api/v1/namespaces/{STATUS_NAMESPACE}/configmaps/{STATUS_NAME}"
    return bool(sandbox.control_plane.request("GET", path)[1].get("data"))


def test_a_night_whose_node_comes_with_its_pod(
    nights: Callable[..., Night], capsys: pytest.CaptureFixture[str]
) -> None:
    night = nights()
    assert (night.ensure()["nodes"], night.plugin()["nodes"]) == ([], {})
    (group,) = night.platform.observe()
    assert (group.desired, group.stale_tags) == (0, ())
    assert group.switch_at is not None, "the switch waits before the autoscaler grows anything"
    assert night.platform.plan(1).is_empty

    assert night.train() == {"trained": True}
    assert "cluster-autoscaler grew" in capsys.readouterr().out
    released = night.scale_down()
    assert (released["desired"], released["nodes"]) == (0, 0)
    assert night.platform.observe()[0].switch_at is None


def test_a_broken_tag_is_explained_and_put_right(
    gpu_sandbox: Sandbox, nights: Callable[..., Night], capsys: pytest.CaptureFixture[str]
) -> None:
    night = nights()
    gpu_sandbox.faults.autoscaler_dead = True
    try:
        night.ensure()
        night.plugin()
        night.break_tag(GPUS_TAG, "0")
    finally:
        gpu_sandbox.faults.autoscaler_dead = False  # it has never seen the group with its right tags
    assert night.train() == {"trained": True}
    log = capsys.readouterr().out
    assert "cluster-autoscaler adds no node" in log
    assert "cluster-autoscaler grew" in log
    night.scale_down()


@pytest.mark.usefixtures("stock_out_first")
def test_a_stock_out_that_the_autoscaler_meets_for_a_pod_is_said_in_the_pods_log(
    gpu_sandbox: Sandbox,
    nights: Callable[..., Night],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("airflow_gpu_provider.scaling.wait.pool_updates.EVERY", 1.0)
    night = nights()
    night.ensure()
    gpu_sandbox.faults.add(Stockout(zone=gpu_sandbox.zones[0]))
    try:
        with pytest.raises(OutOfStock, match=r"got no node in 40 s\. .*No capacity for g6.xlarge on-demand"):
            night.train(schedule_timeout_seconds=40)
    finally:
        gpu_sandbox.faults.clear()
    log = capsys.readouterr().out
    assert "cluster-autoscaler does not try g6.xlarge on-demand in us-west-2a for now" in log
    assert "no g6.xlarge on-demand in us-west-2a: " in log
    night.scale_down()
