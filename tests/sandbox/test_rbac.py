"""Whole nights under the policy in docs/iam and the roles in docs/rbac, and nothing else; and what a missing one is.

Those of groups that others own are in test_scale_only.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from airflow.sdk import DAG
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.clouds.base import platform_for
from airflow_gpu_provider.cluster.api.rest import call, object_path, server_side_apply
from airflow_gpu_provider.cluster.model.refusals import ObjectNotFound
from airflow_gpu_provider.errors import PermissionDenied
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.operators.gpu_pod import GpuPodOperator
from airflow_gpu_provider.operators.install_device_plugin import InstallDevicePluginOperator
from airflow_gpu_provider.sensors.scale_down import ScaleDownSensor
from gpu_sandbox.audit_log import RoleUse
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox import aws_identity, documented_roles, role_record
from tests.sandbox.running import eventually, lines_of, run, until_it_reports

DOCS = Path(__file__).parents[2] / "docs"
GROUP = "airflow-gpu-provider"
PRIVILEGE = "pod-security.kubernetes.io/enforce"
_NODES, _PLUGIN, _PODS = "ClusterRole {0}", "Role {0}-device-plugin", "Role {0}-pods"
NOT_IN_THIS_NIGHT = {
    RoleUse(role.format(GROUP), verb, resource)
    for role, verbs, resources in (
        # Karpenter and EKS Auto Mode: tests/sandbox/test_provisioners.py
        (_NODES, "list", "nodepools nodeclaims"),
        (_NODES, "get", "ec2nodeclasses"),
        ("Role {0}-node-claims", "list", "events"),
        # a ComputeClass: tests/sandbox/test_compute_class_night.py
        (_NODES, "get", "computeclasses"),
        # a node that is not Ready, that has a GPU error, or is of a KubernetesGpuPool
        (_NODES, "get", "nodes"),
        # a checkpoint on a volume, and in which zone that is
        (_NODES, "get", "persistentvolumes"),
        (_PODS, "get", "persistentvolumeclaims"),
        # applied where it is not there yet, for which the API server asks without auditing it
        (_PLUGIN, "create", "daemonsets"),
        # a plugin, or a pod, that does not start
        (_PLUGIN, "get", "pods/log"),
        (_PODS, "list watch", "events"),
        # in these namespaces, too, the cluster's role allows it first
        (_PLUGIN, "get list", "pods"),
        (_PODS, "get list", "pods"),
        # where the first look at a pod does not say it all
        (_PLUGIN, "watch", "pods"),
        (_PODS, "watch", "pods"),
        # GET or POST opens a shell, by the client's protocol
        (_PODS, "get create", "pods/exec"),
    )
    for verb in verbs.split()
    for resource in resources.split()
}


@pytest.fixture(scope="module")
def administrator(gpu_sandbox: Sandbox) -> client.ApiClient:
    return config.new_client_from_config(str(gpu_sandbox.kubeconfig))


@pytest.fixture
def airflow_identity(
    request: pytest.FixtureRequest, gpu_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """Everything below runs as an IAM user with one policy, who is nobody in the cluster but a member of one group."""
    policy = documented_roles.policy("eks-full.json", **documented_roles.of_cluster(gpu_sandbox, "rbac*"))
    key = gpu_sandbox.aws.add_identity(f"airflow-{request.node.name}", policy=policy)
    gpu_sandbox.authenticator.access_entries[key.arn] = [GROUP]
    monkeypatch.setenv("AIRFLOW_CONN_AIRFLOW_IDENTITY", json.dumps(aws_identity.connection(gpu_sandbox, key)))
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")
    yield key.arn
    assert not gpu_sandbox.aws.refused(key.arn)
    role_record.hold("eks-full.json", request.node.nodeid, gpu_sandbox.aws.policy_uses(key.arn))
    del gpu_sandbox.authenticator.access_entries[key.arn]


def give(administrator: client.ApiClient, *roles: str) -> None:
    for manifest in documented_roles.role_manifests(*roles):
        server_side_apply(administrator, manifest)


def take(administrator: client.ApiClient, roles: str) -> None:
    """Undo `give`: an earlier test of this cluster may have given them, and its night have used them."""
    manifests = yaml.safe_load_all((DOCS / "rbac" / roles).read_text())
    for manifest in manifests:
        with suppress(ObjectNotFound):
            call(administrator, "delete", object_path(manifest), resource=manifest["kind"])


@pytest.fixture
def pool(gpu_sandbox: Sandbox, airflow_identity: str) -> EksGpuPool:
    return EksGpuPool(
        name="rbac",
        cluster_name=gpu_sandbox.cluster_name,
        region=gpu_sandbox.region,
        instance_types=["g6.xlarge"],
        zones=[gpu_sandbox.zones[0]],
        max_nodes=1,
        aws_conn_id="airflow_identity",
    )


def train(pool: EksGpuPool, **arguments: Any) -> Any:
    command = ["sh", "-c", "echo '{\"accuracy\": 0.97}' > /airflow/xcom/return.json"]
    training = {"image": "busybox:1.36", "cmds": command, "do_xcom_push": True}
    return run(GpuPodOperator(task_id="train", gpu_pool=pool, **training, **arguments))


@pytest.mark.usefixtures("impatient")
def test_without_the_roles_the_missing_permission_is_named(pool: EksGpuPool) -> None:
    with pytest.raises(PermissionDenied, match="leases"):
        run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool))


def test_a_night_needs_no_more_than_the_documented_roles(
    gpu_sandbox: Sandbox, airflow_identity: str, pool: EksGpuPool, administrator: client.ApiClient
) -> None:
    give(administrator, *documented_roles.FULL_ROLES)
    assert len(run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool))["nodes"]) == 1
    run(InstallDevicePluginOperator(task_id="device_plugin", gpu_pool=pool))
    assert train(pool) == {"accuracy": 0.97}
    assert run(ScaleDownSensor(task_id="scale_down", gpu_pool=pool))["nodes"] == 0
    used = gpu_sandbox.control_plane.audit_log.uses(airflow_identity)
    unused = documented_roles.rbac(*documented_roles.FULL_ROLES) - used - NOT_IN_THIS_NIGHT
    assert not unused, "\n".join(["no call needs these:", *map(str, sorted(unused))])


def test_a_night_on_several_nodes_needs_their_roles_too(pool: EksGpuPool, administrator: client.ApiClient) -> None:
    give(administrator, *documented_roles.FULL_ROLES)
    take(administrator, "several-nodes.yaml")
    several = replace(pool, name="rbac-gang", max_nodes=2)
    run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=several, nodes=2))
    run(InstallDevicePluginOperator(task_id="device_plugin", gpu_pool=several))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PermissionDenied, "tolerated_for", timedelta(0))
        with pytest.raises(PermissionDenied, match="jobs"):
            train(several, nodes=2)
    give(administrator, "several-nodes.yaml")
    assert train(several, nodes=2) == {"accuracy": 0.97}
    assert run(ScaleDownSensor(task_id="scale_down", gpu_pool=several))["nodes"] == 0


def test_code_needs_its_role_too(
    pool: EksGpuPool, administrator: client.ApiClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(administrator, *documented_roles.FULL_ROLES)
    take(administrator, "code.yaml")
    coded = replace(pool, name="rbac-code")
    (tmp_path / "own.json").write_text('{"accuracy": 0.97}')
    with DAG("nightly", schedule=None) as dag:
        task = GpuPodOperator(
            task_id="train",
            gpu_pool=coded,
            image="busybox:1.36",
            code="bundle",
            cmds=["cp", "own.json", "/airflow/xcom/return.json"],
            do_xcom_push=True,
        )
    dag.fileloc = str(tmp_path / "nightly.py")
    monkeypatch.setattr(PermissionDenied, "tolerated_for", timedelta(0))
    run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=coded))
    run(InstallDevicePluginOperator(task_id="device_plugin", gpu_pool=coded))
    with pytest.raises(PermissionDenied, match="configmaps"):
        run(task)
    give(administrator, "code.yaml")
    assert run(task) == {"accuracy": 0.97}
    assert run(ScaleDownSensor(task_id="scale_down", gpu_pool=coded))["nodes"] == 0


def test_a_prefetch_needs_its_role_too_and_a_night_goes_on_without(
    pool: EksGpuPool, administrator: client.ApiClient
) -> None:
    give(administrator, *documented_roles.FULL_ROLES)
    take(administrator, "prefetch.yaml")
    early = replace(pool, name="rbac-early")
    ensure = EnsureGpuPoolOperator(task_id="ensure", gpu_pool=early, prefetch=["busybox:1.36"])
    result, lines = lines_of(lambda: run(ensure))
    assert len(result["nodes"]) == 1
    assert [line for line in lines if "No image is pulled before the trainings do so" in line and "configmaps" in line]
    give(administrator, "prefetch.yaml")
    told = "The nodes pull busybox:1.36 as soon as they join."
    eventually(lambda: told in lines_of(lambda: run(ensure))[1])  # an authorizer hears of a role after it was written
    assert run(ScaleDownSensor(task_id="scale_down", gpu_pool=early))["nodes"] == 0


@pytest.mark.usefixtures("impatient")
def test_a_night_of_an_autoscaler_needs_its_roles_too(pool: EksGpuPool, administrator: client.ApiClient) -> None:
    give(administrator, *documented_roles.FULL_ROLES)
    take(administrator, "autoscaler.yaml")
    until_it_reports(client.CoreV1Api(administrator))
    scaled = replace(pool, name="rbac-scaled", scaling="autoscaler")
    with pytest.raises(PermissionDenied, match="configmaps"):
        run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=scaled))

    give(administrator, "autoscaler.yaml")
    assert run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=scaled))["nodes"] == []
    run(InstallDevicePluginOperator(task_id="device_plugin", gpu_pool=scaled))
    assert train(scaled) == {"accuracy": 0.97}
    assert run(ScaleDownSensor(task_id="scale_down", gpu_pool=scaled))["nodes"] == 0


def test_a_configuration_file_of_the_plugin_needs_its_role_too(
    pool: EksGpuPool, administrator: client.ApiClient
) -> None:
    give(administrator, *documented_roles.FULL_ROLES)
    take(administrator, "device-plugin-config.yaml")
    shared = {"sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 2}]}}}
    install = InstallDevicePluginOperator(task_id="device_plugin", gpu_pool=pool, config=shared)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PermissionDenied, "tolerated_for", timedelta(0))
        with pytest.raises(PermissionDenied, match="configmaps"):
            run(install)
    give(administrator, "device-plugin-config.yaml")
    assert run(install)["change"] == "configured"


# -- what a holder of all these roles cannot do --------------------------------------------------------------------


@pytest.fixture
def holder(
    gpu_sandbox: Sandbox, airflow_identity: str, pool: EksGpuPool, administrator: client.ApiClient
) -> Iterator[client.ApiClient]:
    """The API, as a member of each group that a file of docs/rbac names; beside what a cluster of EKS has."""
    give(administrator, *sorted(path.name for path in (DOCS / "rbac").glob("*.yaml")))
    gpu_sandbox.authenticator.access_entries[airflow_identity] = [GROUP, "airflow-gpu-scaler"]
    core, apps = client.CoreV1Api(administrator), client.AppsV1Api(administrator)
    core.create_namespaced_config_map("kube-system", {"metadata": {"name": "aws-auth"}, "data": {"mapRoles": "[]"}})
    apps.create_namespaced_daemon_set("kube-system", daemon_set("aws-node", {"example.com/node": "none"}))
    yield platform_for(pool).cluster_access().api_client()
    core.delete_namespaced_config_map("aws-auth", "kube-system")
    apps.delete_namespaced_daemon_set("aws-node", "kube-system")


def daemon_set(name: str, nodes: dict[str, str]) -> dict[str, Any]:
    """Return a DaemonSet with the whole node in its hands."""
    labels = {"app": name}
    spec = {
        "nodeSelector": nodes,
        "tolerations": [{"operator": "Exists"}],
        "hostPID": True,
        "containers": [{"name": "all", "image": "busybox:1.36", "securityContext": {"privileged": True}}],
    }
    template = {"metadata": {"labels": labels}, "spec": spec}
    return {"metadata": {"name": name}, "spec": {"selector": {"matchLabels": labels}, "template": template}}


def test_nothing_of_the_cluster_itself_can_be_changed(holder: client.ApiClient) -> None:
    core, apps = client.CoreV1Api(holder), client.AppsV1Api(holder)
    own_role = "[{rolearn: arn:aws:iam::123456789012:role/mine, groups: [system:masters]}]"
    tried: list[Callable[[], Any]] = [
        lambda: core.patch_namespaced_config_map("aws-auth", "kube-system", {"data": {"mapRoles": own_role}}),
        lambda: core.create_namespaced_config_map("kube-system", {"metadata": {"name": "aws-auth-2"}}),
        lambda: apps.patch_namespaced_daemon_set("aws-node", "kube-system", {"metadata": {"labels": {"a": "b"}}}),
        lambda: apps.create_namespaced_daemon_set("kube-system", daemon_set("mine", {})),
        lambda: core.list_namespaced_secret("default"),
        lambda: core.patch_namespace("airflow-gpu-provider", {"metadata": {"labels": {PRIVILEGE: "privileged"}}}),
    ]
    for each in tried:
        with pytest.raises(ApiException) as refused:
            each()
        assert refused.value.status == 403


def test_no_privileged_pod_comes_of_the_role_for_prefetches(
    holder: client.ApiClient, administrator: client.ApiClient
) -> None:
    namespace, events = "airflow-gpu-provider", client.CoreV1Api(administrator)
    apps = client.AppsV1Api(holder)
    apps.create_namespaced_daemon_set(namespace, daemon_set("mine", {}))
    of_it = {"namespace": namespace, "field_selector": "involvedObject.name=mine,reason=FailedCreate"}
    event = eventually(lambda: events.list_namespaced_event(**of_it).items)[0]
    assert 'violates PodSecurity "restricted:latest"' in event.message
    assert not events.list_namespaced_pod(namespace, label_selector="app=mine").items
    client.AppsV1Api(administrator).delete_namespaced_daemon_set("mine", namespace)
