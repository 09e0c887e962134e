"""Nodes that others bring when pods ask for them: whole nights from nothing to nothing, for each provisioner."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from airflow.sdk import DAG
from kubernetes import client, config
from structlog.testing import capture_logs

from airflow_gpu_provider import (
    DeleteGpuPoolOperator,
    EnsureGpuPoolOperator,
    GpuPodOperator,
    InstallDevicePluginOperator,
    KubernetesGpuPool,
    ScaleDownSensor,
    gpu_nodes,
)
from airflow_gpu_provider.addons.device_plugin import PLUGIN_NAMESPACE
from airflow_gpu_provider.cluster.api.rest import server_side_apply
from airflow_gpu_provider.errors import (
    AdmissionDenied,
    AutoscalerNotRunning,
    NoProvisioner,
    PermissionDenied,
    PodDeadline,
    PoolNotReleased,
)
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from gpu_sandbox.control_plane import ControlPlane
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox import documented_roles
from tests.sandbox.karpenter_objects import (
    ec2_node_class,
    failed_before,
    install_karpenter,
    node_pool,
    uninstall_karpenter,
)
from tests.sandbox.provisioner import Kind, Provisioner
from tests.sandbox.running import context_of, eventually, run

KARPENTER = Kind(
    source="karpenter",
    labels={"karpenter.sh/nodepool": "gpu"},
    reason="Nominated",
    message="Pod should schedule on: nodeclaim/{name}",
    node_pool="gpu",
)
AUTO_MODE = Kind(
    source="eks-auto-mode/compute",
    labels={"eks.amazonaws.com/instance-gpu-name": "l4"},
    reason="Nominated",
    message="Pod should schedule on: nodeclaim/{name}",
    node_pool="gpu-auto",
    brings_plugin=True,
)
AUTOPILOT = Kind(
    source="cluster-autoscaler",
    labels={"cloud.google.com/gke-accelerator": "nvidia-l4", "cloud.google.com/gke-spot": "true"},
    reason="TriggeredScaleUp",
    message="pod triggered scale-up: [{{https://www.googleapis.com/z/instanceGroups/gk3-ml-grp 0->1 (max: 1000)}}]",
    brings_plugin=True,
    keeps_for_evictable=frozenset({"cloud.google.com/gke-spot", "cloud.google.com/compute-class"}),
    manages_namespaces=True,
)
CLUSTER_AUTOSCALER = Kind(
    source="cluster-autoscaler",
    labels={"team": "ml"},
    reason="TriggeredScaleUp",
    message="pod triggered scale-up: [{{ml-gpu-asg 0->1 (max: 3)}}]",
)
LEAVING = ("waiting for", "to remove it, no run wants it")
NIGHTS = {
    "karpenter": (KARPENTER, "Karpenter has asked for a machine for it: nodeclaim/gpu-"),
    "auto-mode": (AUTO_MODE, "EKS Auto Mode has asked for a machine for it: nodeclaim/gpu-"),
    "cluster-autoscaler": (CLUSTER_AUTOSCALER, "cluster-autoscaler grew ml-gpu-asg 0->1"),
    "autopilot": (AUTOPILOT, "cluster-autoscaler grew gk3-ml-grp 0->1"),
}


@pytest.fixture(autouse=True)
def here(gpu_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow's default Kubernetes connection leads to the sandbox, and triggers send their events at once."""
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")
    monkeypatch.setattr("airflow_gpu_provider.triggers.record.EVENT_AFTER_SECONDS", 0)
    for name, value in gpu_sandbox.env().items():
        monkeypatch.setenv(name, value)


@pytest.fixture(autouse=True)
def no_plugin_stays(gpu_sandbox: Sandbox) -> Iterator[None]:
    """Device plugins of other pools are asked about on nodes that are still to come: each test leaves none."""
    yield
    apps = client.AppsV1Api(config.new_client_from_config(str(gpu_sandbox.kubeconfig)))
    mine = {"label_selector": f"{POOL_LABEL} in (train-karpenter,train-dry,train-cluster-autoscaler)"}
    apps.delete_collection_namespaced_daemon_set(PLUGIN_NAMESPACE, **mine)
    eventually(lambda: not apps.list_namespaced_daemon_set(PLUGIN_NAMESPACE, **mine).items)


@pytest.fixture
def karpenter(gpu_sandbox: Sandbox) -> Iterator[None]:
    """A cluster with a NodePool of Karpenter's, and one of Auto Mode's."""
    install_karpenter(gpu_sandbox)
    node_pool(gpu_sandbox, "gpu", group="karpenter.k8s.aws")
    node_pool(gpu_sandbox, "gpu-auto", group="eks.amazonaws.com")
    yield
    uninstall_karpenter(gpu_sandbox)


def pool_of(provisioner: str, kind: Kind, **changes: Any) -> KubernetesGpuPool:
    spec = {"name": f"train-{provisioner}", "provisioner": provisioner, "node_selector_labels": dict(kind.labels)}
    return KubernetesGpuPool(**{**spec, "gpus_per_node": 1, "max_runtime": timedelta(hours=1), **changes})


def one_night(pool: KubernetesGpuPool) -> dict[str, Any]:
    """Run the block's tasks in order, as workers and a triggerer would; return their results."""
    with DAG("nightly", schedule=None, start_date=datetime(2026, 1, 1)) as dag, gpu_nodes(pool, gpus=1):
        GpuPodOperator(task_id="train", gpus=1, image="busybox:1.36", cmds=["nvidia-smi", "-L"])
    tasks = [task for task in dag.topological_sort() if not task.task_id.endswith(".done")]
    return {task.task_id.removeprefix(f"{pool.name}."): run(task, context_of(task)) for task in tasks}


def is_told(logs: Sequence[Mapping[str, Any]], *words: str) -> bool:
    """Whether one line has all these words."""
    return any(all(each in str(line["event"]) for each in words) for line in logs)


@pytest.mark.usefixtures("karpenter")
@pytest.mark.parametrize("provisioner", NIGHTS)
def test_a_night_from_nothing_to_nothing(gpu_sandbox: Sandbox, provisioner: str) -> None:
    kind, words = NIGHTS[provisioner]
    with (
        capture_logs() as logs,
        Provisioner(
            gpu_sandbox, kind, boots=lambda: is_told(logs, words), goes=lambda: is_told(logs, *LEAVING)
        ) as there,
    ):
        results = one_night(pool_of(provisioner, kind))
        assert there.nodes == []
        assert len(there.brought) == 1
    assert results["ensure"]["nodes"] == []
    assert results["device_plugin"]["nodes"] == {}
    if kind.brings_plugin:
        assert results["device_plugin"]["change"] == "unchanged"
    assert results["scale_down"] == {**results["scale_down"], "nodes": 0, "desired": 0, "kept": []}
    assert is_told(logs, words)
    assert is_told(logs, *LEAVING)


@pytest.mark.usefixtures("karpenter", "impatient")
def test_a_night_with_karpenter_needs_no_more_than_the_documented_roles(
    gpu_sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(as_service_account(gpu_sandbox, "airflow")))
    connect_to(kubeconfig, monkeypatch)
    with pytest.raises(PermissionDenied, match=r"leases\.coordination\.k8s\.io"):
        run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool_of("karpenter", KARPENTER)))
    grant_roles(gpu_sandbox, "airflow")
    with Provisioner(gpu_sandbox, KARPENTER, failures=1) as there:
        results = one_night(pool_of("karpenter", KARPENTER))
    assert len(there.brought) == 1
    assert results["scale_down"]["nodes"] == 0


def connect_to(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Airflow's default Kubernetes connection lead by this kubeconfig."""
    connection = {"conn_type": "kubernetes", "extra": {"kube_config_path": str(kubeconfig)}}
    monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", json.dumps(connection))


def as_service_account(sandbox: Sandbox, name: str) -> dict[str, Any]:
    """Return a kubeconfig for a new service account, which may do nothing yet."""
    api = config.new_client_from_config(str(sandbox.kubeconfig))
    server_side_apply(api, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}})
    asked = {"spec": {"expirationSeconds": 3600}}
    token = client.CoreV1Api(api).create_namespaced_service_account_token(name, "default", asked).status.token
    found: dict[str, Any] = yaml.safe_load(sandbox.kubeconfig.read_text())
    for user in found["users"]:
        user["user"] = {"token": token}
    return found


def grant_roles(sandbox: Sandbox, name: str) -> None:
    """Give a service account what docs/rbac lists for pools that this package owns."""
    api = config.new_client_from_config(str(sandbox.kubeconfig))
    for manifest in documented_roles.role_manifests(*documented_roles.FULL_ROLES):
        if "subjects" in manifest:
            manifest["metadata"]["name"] += f"-{name}"
            manifest["subjects"] = [{"kind": "ServiceAccount", "name": name, "namespace": "default"}]
        server_side_apply(api, manifest)


@pytest.mark.usefixtures("karpenter")
@pytest.mark.parametrize(("alias", "change"), [("bottlerocket@latest", "unchanged"), ("al2023@latest", "created")])
def test_bottlerocket_of_karpenters_brings_its_own_plugin(gpu_sandbox: Sandbox, alias: str, change: str) -> None:
    ec2_node_class(gpu_sandbox, "default", alias=alias)
    pool = pool_of("karpenter", KARPENTER)
    assert run(InstallDevicePluginOperator(task_id="plugin", gpu_pool=pool))["change"] == change


@pytest.mark.usefixtures("karpenter")
def test_a_stock_out_of_karpenters_is_told(gpu_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_gpu_provider.scaling.wait.pool_updates.EVERY", 0.5)
    with (
        capture_logs() as logs,
        Provisioner(gpu_sandbox, KARPENTER, failures=10, goes=lambda: is_told(logs, *LEAVING)) as there,
    ):
        one_night(pool_of("karpenter", KARPENTER, name="train-dry"))
    assert len(there.brought) == 1
    assert sum("Karpenter got no machine: " in str(line["event"]) for line in logs) == 1, "of ten launches, all alike"
    assert is_told(logs, "Karpenter got no machine: creating instance, insufficient capacity")


@pytest.mark.usefixtures("karpenter")
def test_what_karpenter_says_is_told_at_its_own_time(gpu_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_gpu_provider.scaling.wait.pool_updates.EVERY", 0.5)
    monkeypatch.setattr("airflow_gpu_provider.scaling.decide.snapshot.SLOW", timedelta(seconds=0.5))
    failed_before(gpu_sandbox, "gpu-x7k2p", "insufficient capacity of yesterday evening", ago=timedelta(minutes=50))
    refused = "User is not authorized to perform this operation because no identity-based policy allows it"
    with (
        capture_logs() as logs,
        Provisioner(
            gpu_sandbox,
            KARPENTER,
            refusal=("Unauthorized", refused),
            launches=lambda: is_told(logs, "Karpenter got no machine: NodeClaim gpu-00001: Unauthorized: User is not"),
            boots=lambda: is_told(logs, "pods cannot use it yet", "NodeNotFound: Node not registered with cluster"),
            goes=lambda: is_told(logs, *LEAVING),
        ) as there,
    ):
        one_night(pool_of("karpenter", KARPENTER, name="train-dry"))
    assert len(there.brought) == 1
    assert is_told(logs, refused)
    assert is_told(logs, "Node not registered with cluster")
    assert not is_told(logs, "of yesterday evening")


@pytest.mark.usefixtures("karpenter")
def test_limits_are_noted_and_told_to_the_pod_and_what_karpenter_ignores_is_refused(gpu_sandbox: Sandbox) -> None:
    node_pool(gpu_sandbox, "full", group="karpenter.k8s.aws", spec={"limits": {"nvidia.com/gpu": "0"}})
    kind = replace(KARPENTER, labels={"karpenter.sh/nodepool": "full"}, node_pool="full")
    pool = pool_of("karpenter", kind, name="train-full")
    pod = GpuPodOperator(
        task_id="train", gpu_pool=pool, gpus=1, image="busybox:1.36", cmds=["true"], schedule_timeout_seconds=5
    )
    with capture_logs() as logs, Provisioner(gpu_sandbox, kind):
        run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool))
        with pytest.raises(PodDeadline, match="all available instance types exceed limits for nodepool"):
            run(pod)
    assert is_told(logs, "! NodePool full has no room in its limits (nvidia.com/gpu: 0 of 0)")
    node_pool(gpu_sandbox, "asleep", group="karpenter.k8s.aws", conditions=())
    nobody = pool_of("karpenter", kind, name="train-asleep", node_selector_labels={"karpenter.sh/nodepool": "asleep"})
    with pytest.raises(NoProvisioner, match="asleep: it is not ready"):
        run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=nobody))


def test_without_karpenter_nothing_is_wanted() -> None:
    for provisioner, kind in (("karpenter", KARPENTER), ("auto-mode", AUTO_MODE)):
        with pytest.raises(NoProvisioner, match="has no NodePool"):
            run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool_of(provisioner, kind)))


def test_without_a_living_cluster_autoscaler_nothing_is_wanted(
    control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect_to(control_plane.kubeconfig, monkeypatch)
    core = client.CoreV1Api(config.new_client_from_config(str(control_plane.kubeconfig)))
    ensure = EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool_of("cluster-autoscaler", CLUSTER_AUTOSCALER))
    with pytest.raises(AutoscalerNotRunning, match="does not exist"):
        run(ensure)
    an_hour_ago = f"{datetime.now(UTC) - timedelta(hours=1):%Y-%m-%d %H:%M:%S.%f} +0000 UTC"
    written = {"cluster-autoscaler.kubernetes.io/last-updated": an_hour_ago}
    report = {"metadata": {"name": "cluster-autoscaler-status", "annotations": written}}
    core.create_namespaced_config_map("kube-system", report)
    try:
        with pytest.raises(AutoscalerNotRunning, match="was last written"):
            run(ensure)
    finally:
        core.delete_namespaced_config_map("cluster-autoscaler-status", "kube-system")


@pytest.mark.usefixtures("karpenter")
def test_a_pool_that_no_node_pool_serves_is_refused() -> None:
    pool = pool_of("karpenter", KARPENTER, node_selector_labels={"role": "train"})
    with pytest.raises(NoProvisioner, match="gpu: its nodes cannot have the label role=train"):
        run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool))


def test_scale_down_names_what_the_provisioner_keeps(gpu_sandbox: Sandbox) -> None:
    pool = pool_of("autopilot", AUTOPILOT, name="train-kept")
    with Provisioner(gpu_sandbox, AUTOPILOT, keep_seconds=3600):
        run(GpuPodOperator(task_id="train", gpu_pool=pool, gpus=1, image="busybox:1.36", cmds=["true"]))
        zero = ScaleDownSensor(task_id="zero", gpu_pool=pool, timeout=3, deferrable=False, poke_interval=0.5)
        with pytest.raises(PoolNotReleased, match="waiting for GKE Autopilot to remove it"):
            run(zero)
        deleted = run(DeleteGpuPoolOperator(task_id="delete", gpu_pool=pool))
        not_told = KubernetesGpuPool(name="train-untold", node_selector_labels={"x": "y"}, gpus_per_node=1)
        # In kube-system two policies refuse it, and the API server names the one that it has evaluated first.
        folder, either = "no folder of the node", "(no folder of the node|manages that namespace)"
        for namespace, why in ((PLUGIN_NAMESPACE, folder), ("kube-system", either)):
            with pytest.raises(AdmissionDenied, match=f"GKE Autopilot .*{why}"):
                run(InstallDevicePluginOperator(task_id="plugin", gpu_pool=not_told, namespace=namespace))
    assert deleted["pool"] == "train-kept"
