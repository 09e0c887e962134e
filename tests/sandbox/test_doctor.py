"""What would stop tonight's run, brought about for real: the doctor names it, and what to do, before the night."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client, config

from airflow_gpu_provider import EksGpuPool, GkeGpuPool, KubernetesGpuPool
from airflow_gpu_provider.cluster.api.rest import server_side_apply
from airflow_gpu_provider.cluster.model.autoscaler_status import LAST_UPDATED, STATUS_NAME, STATUS_NAMESPACE
from airflow_gpu_provider.errors import GpusNotAllocatable, PoolNotUsable
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.operators.install_device_plugin import InstallDevicePluginOperator
from airflow_gpu_provider.operators.reports import GpuPoolDoctorOperator
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.reports.doctor import Finding, examine
from airflow_gpu_provider.scaling.apply.reconcile import open_pool
from airflow_gpu_provider.sensors.scale_down import ScaleDownSensor
from gpu_sandbox.aws import AccessKey
from gpu_sandbox.aws.observer import aws_client
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox import aws_identity, documented_roles, role_record
from tests.sandbox.running import eventually, run, until_allowed, until_it_reports

DOCS = Path(__file__).parents[2] / "docs"
EVERY_POLICY = ["eks-full.json", "eks-doctor.json"]
POOL_CHECKS = ["cluster", "permissions", "cloud permissions", "groups", "quota", "stock", "device plugin", "driver"]


@pytest.fixture(autouse=True)
def airflow(gpu_sandbox: Sandbox, gpu_sandbox_env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")
    yield
    gpu_sandbox.faults.clear()


@pytest.fixture(scope="module")
def administrator(gpu_sandbox: Sandbox) -> client.ApiClient:
    return config.new_client_from_config(str(gpu_sandbox.kubeconfig))


@pytest.fixture
def pool(gpu_sandbox: Sandbox) -> Callable[..., EksGpuPool]:
    def pool(**changes: Any) -> EksGpuPool:
        where = {"cluster_name": gpu_sandbox.cluster_name, "region": gpu_sandbox.region}
        usual = {"instance_types": ["g6.xlarge"], "zones": [gpu_sandbox.zones[0]], "max_nodes": 2}
        return EksGpuPool(**{"name": "doctor", **where, **usual, **changes})

    return pool


@pytest.fixture
def identity(
    request: pytest.FixtureRequest, gpu_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., None]]:
    """Makes the connection `patient`: an IAM user with these files of docs/iam, who is in one group of the cluster."""
    entries = gpu_sandbox.authenticator.access_entries

    def identity(name: str, files: list[str], group: str, *, without: Sequence[str] = ()) -> None:
        values = {**documented_roles.of_cluster(gpu_sandbox, "doctor*"), "AIRFLOW": f"user/doctor-{name}"}
        policy = documented_roles.policy(*files, without=without, **values)
        key = gpu_sandbox.aws.add_identity(f"doctor-{name}", policy=policy)
        monkeypatch.setitem(entries, key.arn, [group])
        monkeypatch.setenv("AIRFLOW_CONN_PATIENT", json.dumps(aws_identity.connection(gpu_sandbox, key)))
        keys.append((files, key))

    keys: list[tuple[list[str], AccessKey]] = []
    yield identity
    for files, key in keys:
        for file in files:
            role_record.hold(file, request.node.nodeid, gpu_sandbox.aws.policy_uses(key.arn))


def examined(pool: GpuPool) -> tuple[Finding, ...]:
    found = examine(pool, lambda: open_pool(pool, owner="tests/doctor", holder="the doctor", report=print))
    # Other tests leave node groups in this cluster, and from the 31st on the doctor warns of EKS's limit.
    return tuple(each for each in found if "managed node groups and would have" not in each.message)


def complaints(pool: GpuPool) -> dict[str, list[Finding]]:
    """By check, what is not well. Each says what to do, but where it points to another."""
    found: dict[str, list[Finding]] = {}
    for each in examined(pool):
        if each.result != "ok":
            assert each.fix or each.message.startswith("could not be checked: see "), each
            found.setdefault(each.check, []).append(each)
    return found


def the_only(pool: GpuPool, check: str, result: str = "problem") -> Finding:
    """Return the one complaint about a pool."""
    found = complaints(pool)
    assert list(found) == [check], found
    (finding,) = found[check]
    assert finding.result == result
    return finding


# -- nothing ---------------------------------------------------------------------------------------------------


def test_nothing_would_stop_it(pool: Callable[..., EksGpuPool]) -> None:
    findings = examined(pool())
    assert {each.result for each in findings} == {"ok"}
    assert list(dict.fromkeys(each.check for each in findings)) == ["credentials", *POOL_CHECKS]
    assert "all changes that a run makes in the cloud" in [each.message for each in findings]


# -- credentials and the way to the cluster --------------------------------------------------------------------


def test_connections_that_are_missing_though_there_are_ambient_credentials(
    pool: Callable[..., EksGpuPool], gpu_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_aws = the_only(pool(aws_conn_id="nowhere"), "credentials")
    assert of_aws.message == "The Airflow connection 'nowhere' was not found."
    assert "aws_conn_id=None uses the worker's own" in of_aws.fix
    assert examined(pool(aws_conn_id=None))[0].result == "ok", "who asks for ambient credentials has them"

    monkeypatch.delenv("AIRFLOW_CONN_KUBERNETES_DEFAULT")
    assert "kubernetes_default" in the_only(KubernetesGpuPool(name="lab", nodes=["metal-1"]), "credentials").message

    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(gpu_sandbox.kubeconfig))
    gke = GkeGpuPool(
        name="lost",
        cluster_name="ml",
        project_id="some-project",
        location="us-central1",
        machine_types=["g2-standard-4"],
        max_nodes=1,
        gcp_conn_id="nowhere",
    )
    assert "nowhere" in the_only(gke, "credentials").message


def test_a_cluster_that_does_not_answer_is_told_once(gpu_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    kubeconfig = yaml.safe_load(gpu_sandbox.kubeconfig.read_text())
    kubeconfig["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    connection = {"conn_type": "kubernetes", "extra": {"kube_config": json.dumps(kubeconfig)}}
    monkeypatch.setenv("AIRFLOW_CONN_SILENT", json.dumps(connection))
    pool = KubernetesGpuPool(name="lab", nodes=["metal-1"], kubernetes_conn_id="silent")
    assert "did not answer" in the_only(pool, "cluster").message


# -- permissions -----------------------------------------------------------------------------------------------


def test_permissions_of_the_cluster_that_are_missing(
    pool: Callable[..., EksGpuPool],
    identity: Callable[..., None],
    administrator: client.ApiClient,
) -> None:
    identity("rbac", EVERY_POLICY, "doctor-patients")
    patient = pool(aws_conn_id="patient")
    nobody = complaints(patient)
    assert nobody["cluster"][0].message.startswith("The cluster denies permission to list leases")
    assert [each.message for each in nobody["stock"]] == ["could not be checked: see cluster"]
    assert "may not get/list/create/update/delete leases in namespace airflow-gpu-provider" in [
        each.message for each in nobody["permissions"]
    ]

    give_most_of(documented_roles.FULL_ROLES, "doctor-patients", administrator)
    until_allowed(administrator, groups=["doctor-patients"], namespace="airflow-gpu-provider", resource="leases")
    found = complaints(patient)
    assert {(each.message, each.result) for each in found.pop("permissions")} == {
        ("may not patch nodes", "problem"),
        ("may not create pods in namespace default", "problem"),
        (
            "may not get/create pods/exec in namespace default: needed for do_xcom_push=True, by which a pod's result"
            " is read",
            "warning",
        ),
    }
    assert found == {}
    scaled = complaints(pool(aws_conn_id="patient", name="doctor-scaled", scaling="autoscaler"))
    (report,) = (each for each in scaled["permissions"] if "autoscaler.yaml" in each.fix)
    assert (report.message, report.result) == (
        "may not get configmaps cluster-autoscaler-status in namespace kube-system",
        "problem",
    )


def give_most_of(files: Sequence[str], group: str, administrator: client.ApiClient) -> None:
    """Give a group of its own what files of docs/rbac grant, but nodes' patch, pods' create, exec and ConfigMaps."""
    taken = {"nodes": "patch", "pods": "create"}
    for manifest in documented_roles.role_manifests(*files):
        if manifest["kind"] in ("Namespace", "ResourceQuota"):
            server_side_apply(administrator, manifest)
            continue
        manifest["metadata"]["name"] = f"doctor-{manifest['metadata']['name']}"
        for rule in manifest.get("rules", ()):
            (resource, *_) = rule["resources"]
            rule["verbs"] = [verb for verb in rule["verbs"] if verb != taken.get(resource)]
        if "rules" in manifest:
            manifest["rules"] = [
                rule for rule in manifest["rules"] if rule["resources"][0] not in ("pods/exec", "configmaps")
            ]
        else:
            manifest["roleRef"]["name"] = f"doctor-{manifest['roleRef']['name']}"
            manifest["subjects"][0]["name"] = group
        server_side_apply(administrator, manifest)


def test_permissions_of_aws_that_are_missing(pool: Callable[..., EksGpuPool], identity: Callable[..., None]) -> None:
    """Those to change things are asked for, and those to read are tried: nothing is changed either way."""
    patient = pool(aws_conn_id="patient")
    lacking = ("autoscaling:SetDesiredCapacity", "eks:CreateNodegroup", "servicequotas:GetServiceQuota")
    identity("cannot-grow", EVERY_POLICY, "system:masters", without=lacking)
    found = complaints(patient)
    assert list(found) == ["cloud permissions", "quota"]
    assert [each.result for each in found["quota"]] == ["unchecked"]
    assert "quotas are not checked: AWS refused servicequotas:GetServiceQuota" in found["quota"][0].message
    assert "Request a higher" not in found["quota"][0].fix
    assert [each.message for each in found["cloud permissions"]] == [
        "may not eks:CreateNodegroup",
        "may not autoscaling:SetDesiredCapacity",
    ]
    assert {(each.result, each.fix) for each in found["cloud permissions"]} == {
        ("problem", "Allow it: docs/iam.md has the whole policy.")
    }

    identity("cannot-read", EVERY_POLICY, "system:masters", without=["ec2:DescribeSubnets"])
    found = complaints(patient)
    (groups,) = found["groups"]
    assert groups.result == "problem"
    assert "AWS refused ec2:DescribeSubnets" in groups.message
    assert [(each.result, each.message) for each in found["quota"]] == [
        ("unchecked", "could not be checked: see groups")
    ]

    identity("cannot-ask", ["eks-full.json"], "system:masters", without=["autoscaling:SetDesiredCapacity"])
    findings = examined(patient)
    assert {(each.check, each.result) for each in findings if each.result != "ok"} == {
        ("cloud permissions", "unchecked")
    }
    (message,) = (each.message for each in findings if each.check == "cloud permissions")
    assert "are not checked: iam:SimulatePrincipalPolicy is not allowed" in message


def test_a_permission_and_a_quota_of_google_cloud(gke_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    role = documented_roles.google_role("gke-full.json")
    lacking = {*role} - {"compute.instanceGroupManagers.update"}
    account = gke_sandbox.google.add_identity("doctor-patient", permissions=lacking)
    monkeypatch.setitem(gke_sandbox.authenticator.access_entries, account.email, ["system:masters"])
    monkeypatch.setenv("AIRFLOW_CONN_PATIENT", json.dumps(gke_sandbox.google.connection(account)))
    monkeypatch.setenv("AIRFLOW_CONN_GCP_ADMIN", json.dumps(gke_sandbox.google.connection()))

    def pool(conn_id: str) -> GkeGpuPool:
        return GkeGpuPool(
            name="doctor",
            cluster_name=gke_sandbox.cluster_name,
            project_id=gke_sandbox.google.project_id,
            location=gke_sandbox.google.location,
            node_locations=[gke_sandbox.zones[0]],
            machine_types=["g2-standard-4"],
            max_nodes=1,
            gcp_conn_id=conn_id,
        )

    assert complaints(pool("gcp_admin")) == {}
    refused = the_only(pool("patient"), "cloud permissions")
    assert refused.message == "may not compute.instanceGroupManagers.update"
    assert "docs/iam-gke.md" in refused.fix
    gke_sandbox.faults.set_quota("NVIDIA_L4_GPUS", 0)
    gke_sandbox.faults.set_quota("PREEMPTIBLE_NVIDIA_L4_GPUS", 0)
    try:
        assert "NVIDIA_L4_GPUS" in the_only(pool("gcp_admin"), "quota").fix
    finally:
        gke_sandbox.faults.clear()


# -- quotas, groups and their autoscaler -----------------------------------------------------------------------


def test_quotas_that_are_too_small(pool: Callable[..., EksGpuPool], gpu_sandbox: Sandbox) -> None:
    """P machines: no other test of this sandbox has any, so none of the quota is in use."""
    patient = pool(instance_types=["p3.8xlarge"])
    gpu_sandbox.faults.set_quota("L-417A185B", 32)
    few = the_only(patient, "quota", "warning")
    assert few.message.startswith("one more node fits, but max_nodes=2 nodes do not: Pool doctor needs 2 more nodes")
    gpu_sandbox.faults.set_quota("L-417A185B", 31)
    none = the_only(patient, "quota")
    assert "(L-417A185B) is 31 vCPUs, 0 are used, 32 more are needed" in none.message
    assert "Request a higher L-417A185B in Service Quotas" in none.fix


@pytest.fixture
def group_of_others(gpu_sandbox: Sandbox) -> Iterator[str]:
    """A managed node group as Terraform makes it, without tags for an autoscaler."""
    name, cluster = "doctor-terraform", gpu_sandbox.cluster_name
    eks = aws_client(gpu_sandbox.aws, "eks")
    eks.create_nodegroup(
        clusterName=cluster,
        nodegroupName=name,
        nodeRole=gpu_sandbox.node_role_arn,
        subnets=[gpu_sandbox.subnets[gpu_sandbox.zones[0]]],
        instanceTypes=["g6.xlarge"],
        amiType="AL2023_x86_64_NVIDIA",
        scalingConfig={"minSize": 0, "maxSize": 2, "desiredSize": 0},
        taints=[{"key": "nvidia.com/gpu", "value": "present", "effect": "NO_SCHEDULE"}],
    )
    described = lambda: eks.describe_nodegroup(clusterName=cluster, nodegroupName=name)["nodegroup"]  # noqa: E731
    eventually(lambda: described()["status"] == "ACTIVE")
    yield name
    eks.delete_nodegroup(clusterName=cluster, nodegroupName=name)
    eventually(lambda: name not in eks.list_nodegroups(clusterName=cluster)["nodegroups"])


def put_tags(sandbox: Sandbox, fix: str) -> None:
    """Do what the fix says: run its `aws autoscaling create-or-update-tags`."""
    words = shlex.split(fix[fix.index("aws autoscaling ") :])
    tags = [dict(part.split("=", 1) for part in word.split(",")) for word in words[words.index("--tags") + 1 :]]
    request = [{**tag, "PropagateAtLaunch": tag["PropagateAtLaunch"] == "true"} for tag in tags]
    aws_client(sandbox.aws, "autoscaling").create_or_update_tags(Tags=request)


def test_groups_of_others_and_their_autoscaler(
    pool: Callable[..., EksGpuPool],
    gpu_sandbox: Sandbox,
    group_of_others: str,
    administrator: client.ApiClient,
) -> None:
    core = client.CoreV1Api(administrator)
    until_it_reports(core)
    of_others = {"manage": "scale", "instance_types": [], "zones": [], "scaling": "autoscaler"}
    there = pool(name="doctor-others", node_groups=[group_of_others], **of_others)
    found = complaints(there)
    assert found.keys() - {"autoscaler"} == {"groups"}, "what it has looked for a minute for it does not know either"
    (untagged,) = found["groups"]
    assert untagged.result == "problem"
    assert f"cannot scale {group_of_others} from zero: tags are missing" in untagged.message
    assert "aws autoscaling create-or-update-tags" in untagged.fix

    put_tags(gpu_sandbox, untagged.fix)
    eventually(lambda: complaints(there) == {})

    gone = complaints(pool(name="doctor-others", node_groups=["nowhere"], **of_others))
    assert "has no node group nowhere" in gone["groups"][0].message

    scaled = pool(name="doctor-scaled", scaling="autoscaler")
    assert complaints(scaled) == {}
    gpu_sandbox.faults.autoscaler_dead = True

    def reports(at: datetime, status: str) -> bool:
        """Write what the dead autoscaler seems to have said; its last look may still be under way, and write too."""
        annotations = {LAST_UPDATED: f"{at:%Y-%m-%d %H:%M:%S}.123456789 +0000 UTC"}
        body = {"metadata": {"annotations": annotations}, "data": {"status": status}}
        core.patch_namespaced_config_map(STATUS_NAME, STATUS_NAMESPACE, body)
        return "autoscaler" in complaints(there)

    eventually(lambda: reports(datetime.now(UTC), "autoscalerStatus: Running"))
    unknown = the_only(there, "autoscaler", "warning")
    assert f"does not report eks-{group_of_others}-" in unknown.message
    eventually(lambda: reports(datetime.now(UTC) - timedelta(hours=1), ""))
    assert "was last written" in the_only(scaled, "autoscaler").message
    core.delete_namespaced_config_map(STATUS_NAME, STATUS_NAMESPACE)
    absent = the_only(scaled, "autoscaler")
    assert f"ConfigMap {STATUS_NAMESPACE}/{STATUS_NAME} does not exist" in absent.message
    assert "InstallClusterAutoscalerOperator" in absent.fix
    gpu_sandbox.faults.clear()
    until_it_reports(core)


# -- nodes that are there --------------------------------------------------------------------------------------


def test_a_driver_that_never_becomes_ready(pool: Callable[..., EksGpuPool], gpu_sandbox: Sandbox) -> None:
    """And the doctor as a task, which fails by day for what would fail at night."""
    patient = pool(name="doctor-blind", max_nodes=1)
    gpu_sandbox.faults.driver_never_ready = True
    run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=patient, deferrable=False))
    try:
        slow = the_only(patient, "driver", "warning")
        assert "without an allocatable GPU" in slow.message
        install = InstallDevicePluginOperator(
            task_id="plugin", gpu_pool=patient, deferrable=False, timeout=timedelta(seconds=3)
        )
        with pytest.raises(GpusNotAllocatable):
            run(install)
        blind = eventually(lambda: [each for each in examined(patient) if each.result == "problem"])
        assert [each.check for each in blind] == ["driver"]
        assert "; plugin pod nvidia-device-plugin-doctor-blind-" in blind[0].message
        assert "kubectl -n airflow-gpu-device-plugins logs nvidia-device-plugin-doctor-blind-" in blind[0].fix
        with pytest.raises(PoolNotUsable, match=r"Pool doctor-blind, driver: node .* without an allocatable GPU"):
            run(GpuPoolDoctorOperator(task_id="doctor", gpu_pools=[patient]))
    finally:
        gpu_sandbox.faults.clear()
        run(ScaleDownSensor(task_id="zero", gpu_pool=patient))
