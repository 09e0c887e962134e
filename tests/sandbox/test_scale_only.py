"""Nights in groups that others own: under the scale-only roles and nothing else, and every group as it was after."""

from __future__ import annotations

import json
import os
import re
import shlex
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client, config

from airflow_gpu_provider import DeleteGpuPoolOperator, EksGpuPool, GkeGpuPool
from airflow_gpu_provider.clouds.aws.autoscaling import SWITCH
from airflow_gpu_provider.clouds.base import platform_for
from airflow_gpu_provider.cluster.api.rest import server_side_apply
from airflow_gpu_provider.cluster.model.lease import DEMAND_NAMESPACE
from airflow_gpu_provider.errors import (
    AutoscalerTagsMissing,
    AutoscalingDisabled,
    CheckpointUnusable,
    GroupNotFound,
    PoolDrift,
    PoolSpecError,
)
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.operators.gpu_pod import GpuPodOperator
from airflow_gpu_provider.operators.install_device_plugin import InstallDevicePluginOperator
from airflow_gpu_provider.operators.reap import ReapGpuPoolsOperator
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from airflow_gpu_provider.scaling.apply.reconcile import Reconciler, open_pool
from airflow_gpu_provider.scaling.state.lock import PoolLock
from airflow_gpu_provider.scaling.wait.retry import Setbacks
from airflow_gpu_provider.sensors.scale_down import ScaleDownSensor
from airflow_gpu_provider.training.life.pod_attempt import PodAttempt
from airflow_gpu_provider.training.wait.attempt_wait import WaitOutcome
from gpu_sandbox.aws.observer import aws_client
from gpu_sandbox.faults import Stockout
from gpu_sandbox.google import GoogleTimings
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox import aws_identity, documented_roles, role_record
from tests.sandbox.running import eventually, run, until_it_reports
from tests.sandbox.ways import DEFERRED_BY_DAY

DOCS = Path(__file__).parents[2] / "docs"
GROUP = "airflow-gpu-scaler"
OWNERS_LABEL = "owner"
# What the kubelet of an Auto Scaling group is told in its launch template, as its owner writes it.
USER_DATA = "/etc/eks/bootstrap.sh k8s --kubelet-extra-args '--node-labels=owner=terraform'"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")
    # Triggers send their events at once: there is no scheduler here to be patient for.
    monkeypatch.setattr("airflow_gpu_provider.triggers.record.EVENT_AFTER_SECONDS", 0)


def give_roles(administrator: client.ApiClient, *files: str) -> None:
    for file in files or ("scale-only.yaml",):
        for manifest in yaml.safe_load_all((DOCS / "rbac" / file).read_text()):
            server_side_apply(administrator, manifest)


def one_night(pool: GpuPool, during: Callable[[], None]) -> list[dict[str, Any]]:
    """Run the tasks of a block with one node; return the nodes. `during` looks while they are there."""
    result = run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, nodes=1))
    during()
    plugin = run(InstallDevicePluginOperator(task_id="device_plugin", gpu_pool=pool))
    assert plugin["change"] == "unchanged"
    train = ["sh", "-c", "echo '{\"accuracy\": 0.97}' > /airflow/xcom/return.json"]
    trained = run(GpuPodOperator(task_id="train", gpu_pool=pool, image="busybox:1.36", cmds=train, do_xcom_push=True))
    assert trained == {"accuracy": 0.97}
    zero = run(ScaleDownSensor(task_id="scale_down", gpu_pool=pool))
    assert (zero["nodes"], zero["desired"], zero["kept"]) == (0, 0, [])
    nodes: list[dict[str, Any]] = result["nodes"]
    return nodes


class Eks:
    """The sandbox's AWS as the groups' owner sees it."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.eks, self.asg, self.ec2 = (aws_client(sandbox.aws, name) for name in ("eks", "autoscaling", "ec2"))
        self.administrator = config.new_client_from_config(str(sandbox.kubeconfig))
        self.node_groups: list[str] = []
        self._made: list[Callable[[], Any]] = []

    def node_group(self, name: str, **changes: Any) -> str:
        """Return the Auto Scaling group behind a managed node group that Terraform makes."""
        cluster, zone = self.sandbox.cluster_name, self.sandbox.zones[0]
        request = {
            "clusterName": cluster,
            "nodegroupName": name,
            "nodeRole": self.sandbox.node_role_arn,
            "subnets": [self.sandbox.subnets[zone]],
            "instanceTypes": ["g6.xlarge"],
            "amiType": "AL2023_x86_64_NVIDIA",
            "scalingConfig": {"minSize": 0, "maxSize": 2, "desiredSize": 0},
            "labels": {OWNERS_LABEL: "terraform"},
            "taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NO_SCHEDULE"}],
            "tags": {"owner": "terraform"},
        }
        self.eks.create_nodegroup(**(request | changes))
        self.node_groups.append(name)
        self._made.append(lambda: self.eks.delete_nodegroup(clusterName=cluster, nodegroupName=name))
        group = eventually(lambda: self.described(name)["status"] == "ACTIVE" and self.described(name))
        return str(group["resources"]["autoScalingGroups"][0]["name"])

    def auto_scaling_group(self, name: str, zones: int = 1, *, spot: bool = False, **changes: Any) -> str:
        """Return a group that Terraform makes without EKS; its instances join by what their user data says."""
        import base64

        data = {
            "ImageId": "ami-12345678",
            "InstanceType": "g6.xlarge",
            "UserData": base64.b64encode(USER_DATA.encode()).decode(),
        }
        self.ec2.create_launch_template(LaunchTemplateName=f"{name}-nodes", LaunchTemplateData=data)
        cluster_tag = {"Key": f"kubernetes.io/cluster/{self.sandbox.cluster_name}", "Value": "owned"}
        request = {
            "AutoScalingGroupName": name,
            "MinSize": 0,
            "MaxSize": 2,
            **_launching({"LaunchTemplateName": f"{name}-nodes"}, spot=spot),
            "VPCZoneIdentifier": ",".join(self.sandbox.subnets[zone] for zone in self.sandbox.zones[:zones]),
            "Tags": [{**cluster_tag, "PropagateAtLaunch": True}],
        }
        self.asg.create_auto_scaling_group(**(request | changes))
        self._made.append(lambda: self.asg.delete_auto_scaling_group(AutoScalingGroupName=name, ForceDelete=True))
        return name

    def tag(self, tags: list[dict[str, Any]]) -> None:
        self.asg.create_or_update_tags(Tags=tags)

    def described(self, name: str) -> dict[str, Any]:
        answer = self.eks.describe_nodegroup(clusterName=self.sandbox.cluster_name, nodegroupName=name)
        return dict(answer["nodegroup"])

    def everything(self, asg: str, node_group: str | None) -> dict[str, Any]:
        """All that AWS says of a group."""
        (found,) = self.asg.describe_auto_scaling_groups(AutoScalingGroupNames=[asg])["AutoScalingGroups"]
        return {
            "node group": self.described(node_group) if node_group else None,
            "group": found,
            "scheduled actions": self.actions(asg),
            "hooks": self.asg.describe_lifecycle_hooks(AutoScalingGroupName=asg)["LifecycleHooks"],
            "tags": self.asg.describe_tags(Filters=[{"Name": "auto-scaling-group", "Values": [asg]}])["Tags"],
        }

    def hide_from_autoscaler(self, asg: str) -> None:
        """Take off the tag by which cluster-autoscaler finds a group: it, too, gives up machines that do not come."""
        tag = {"ResourceId": asg, "ResourceType": "auto-scaling-group", "Key": "k8s.io/cluster-autoscaler/enabled"}
        self.asg.delete_tags(Tags=[tag])

    def actions(self, asg: str) -> dict[str, Any]:
        found = self.asg.describe_scheduled_actions(AutoScalingGroupName=asg)["ScheduledUpdateGroupActions"]
        return {action["ScheduledActionName"]: action for action in found}

    def end(self) -> None:
        for unmake in self._made:
            unmake()
        cluster = self.sandbox.cluster_name
        eventually(lambda: not {*self.node_groups} & {*self.eks.list_nodegroups(clusterName=cluster)["nodegroups"]})


def _launching(template: dict[str, str], *, spot: bool) -> dict[str, Any]:
    if not spot:
        return {"LaunchTemplate": template}
    split = {"OnDemandPercentageAboveBaseCapacity": 0}
    return {
        "MixedInstancesPolicy": {
            "LaunchTemplate": {"LaunchTemplateSpecification": template},
            "InstancesDistribution": split,
        }
    }


@pytest.fixture
def owner(gpu_sandbox: Sandbox) -> Iterator[Eks]:
    owner = Eks(gpu_sandbox)
    yield owner
    owner.end()


@pytest.fixture
def plugin_of_the_owner(owner: Eks) -> Iterator[None]:
    """The device plugin comes with the cluster, as its owner made it: on the owner's nodes alone."""
    container = {"name": "plugin", "image": "nvcr.io/nvidia/k8s-device-plugin:v0.20.0"}
    spec = {
        "nodeSelector": {OWNERS_LABEL: "terraform"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "containers": [container],
        "volumes": [{"name": "plugins", "hostPath": {"path": "/var/lib/kubelet/device-plugins"}}],
    }
    labels = {"app": "nvidia-device-plugin"}
    body = {
        "metadata": {"name": "nvidia-device-plugin-daemonset", "namespace": "kube-system"},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}},
    }
    apps = client.AppsV1Api(owner.administrator)
    apps.create_namespaced_daemon_set("kube-system", body)
    yield
    apps.delete_namespaced_daemon_set("nvidia-device-plugin-daemonset", "kube-system")


@pytest.fixture
def scaler(
    request: pytest.FixtureRequest, gpu_sandbox: Sandbox, owner: Eks, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Airflow is an IAM user with one policy, who is nobody in the cluster but a member of one group."""
    give_roles(owner.administrator)
    name = f"airflow-{request.node.name.replace('[', '-').rstrip(']')}"
    policy = documented_roles.policy("eks-scale-only.json", **documented_roles.of_cluster(gpu_sandbox))
    key = gpu_sandbox.aws.add_identity(name, policy=policy)
    gpu_sandbox.authenticator.access_entries[key.arn] = [GROUP]
    connection = {**aws_identity.connection(gpu_sandbox, key), "description": name}
    monkeypatch.setenv("AIRFLOW_CONN_SCALER", json.dumps(connection))
    yield
    del gpu_sandbox.authenticator.access_entries[key.arn]
    assert not gpu_sandbox.aws.refused(key.arn)
    role_record.hold("eks-scale-only.json", request.node.nodeid, gpu_sandbox.aws.policy_uses(key.arn))


def eks_pool(sandbox: Sandbox, **changes: Any) -> EksGpuPool:
    """Return a pool, after its groups were put into the policy of the scaler."""
    groups = {"NODE_GROUP": changes.get("node_groups", []), "ASG_NAME": changes.get("asg_names", [])}
    policy = documented_roles.policy("eks-scale-only.json", **documented_roles.of_cluster(sandbox), **groups)
    aws_client(sandbox.aws, "iam").put_user_policy(
        UserName=json.loads(os.environ["AIRFLOW_CONN_SCALER"])["description"],
        PolicyName=f"of-{changes.get('name', 'of-terraform')}",
        PolicyDocument=json.dumps(policy),
    )
    of_pool: dict[str, Any] = {
        "name": "of-terraform",
        "cluster_name": sandbox.cluster_name,
        "region": sandbox.region,
        "manage": "scale",
        "max_nodes": 2,
        "node_labels": {"role": "train-gpu"},
        "aws_conn_id": "scaler",
    }
    return EksGpuPool(**(of_pool | changes))


@pytest.mark.usefixtures("scaler", "plugin_of_the_owner")
@pytest.mark.parametrize("kind", ["node_groups", pytest.param("asg_names", marks=pytest.mark.nightly)])
def test_two_nights_leave_a_group_of_others_as_it_was(gpu_sandbox: Sandbox, owner: Eks, kind: str) -> None:
    name = f"terraform-{kind.replace('_', '-')}"
    asg = owner.node_group(name) if kind == "node_groups" else owner.auto_scaling_group(name)
    managed = name if kind == "node_groups" else None
    monday = {"ScheduledActionName": "monday", "Recurrence": "0 6 * * 1", "MinSize": 0}
    owner.asg.put_scheduled_update_group_action(AutoScalingGroupName=asg, **monday)
    before = owner.everything(asg, managed)
    made = gpu_sandbox.aws.calls
    pool = eks_pool(gpu_sandbox, **{kind: [name]})
    looks: list[set[str]] = []

    def during() -> None:
        nonlocal made
        calls = gpu_sandbox.aws.calls
        looks.append(set(owner.actions(asg)))
        made += gpu_sandbox.aws.calls - calls  # the owner's own look is not Airflow's

    nodes = [*one_night(pool, during), *one_night(pool, during)]

    calls = gpu_sandbox.aws.calls - made
    assert [(node["group"], node["instance_type"], node["capacity_type"]) for node in nodes] == [
        (name, "g6.xlarge", "ON_DEMAND")
    ] * 2
    assert looks == [{"monday", SWITCH}] * 2
    assert len(calls) > 8
    assert owner.everything(asg, managed) == before
    # The policy names the groups by this.
    assert asg.startswith(f"eks-{name}-") if managed else asg == name


class Spot:
    """EC2 takes machines back from under pods, in a group that drains none."""

    def __init__(self, owner: Eks) -> None:
        self._owner = owner
        self._core = client.CoreV1Api(owner.administrator)

    def takes_before_the_end_is_judged(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Take the machines of the first two attempts when their containers have ended, before a worker judges why."""
        collect = PodAttempt.collect

        def taken(attempt: PodAttempt, watched: WaitOutcome, setbacks: Setbacks) -> Any:
            pod = self._core.read_namespaced_pod(watched.name, watched.namespace)
            if _attempt(pod) in ("1", "2"):
                self._take(pod)
            return collect(attempt, watched, setbacks)

        monkeypatch.setattr(PodAttempt, "collect", taken)

    def takes_the_third_while_it_runs(self, pool: EksGpuPool) -> threading.Thread:
        of_the_pool = {"label_selector": f"{POOL_LABEL}={pool.name}", "field_selector": "status.phase=Running"}

        def third() -> client.V1Pod | None:
            pods = self._core.list_namespaced_pod("default", **of_the_pool).items
            return next((pod for pod in pods if _attempt(pod) == "3"), None)

        thread = threading.Thread(target=lambda: self._take(eventually(third)))
        thread.start()
        return thread

    def _take(self, pod: client.V1Pod) -> None:
        machine = self._core.read_node(pod.spec.node_name).spec.provider_id.rpartition("/")[2]
        self._owner.sandbox.aws.interrupt_spot(machine)
        eventually(lambda: self._state(machine) == "terminated")

    def _state(self, machine: str) -> str:
        (reservation,) = self._owner.ec2.describe_instances(InstanceIds=[machine])["Reservations"]
        return str(reservation["Instances"][0]["State"]["Name"])


def _attempt(pod: client.V1Pod) -> str:
    return str((pod.metadata.annotations or {}).get("airflow-gpu-provider/attempt"))


@pytest.mark.usefixtures("scaler", "plugin_of_the_owner")
@DEFERRED_BY_DAY
def test_spot_machines_that_nobody_drains_are_preemptions_and_ec2_says_why(
    owner: Eks,
    gpu_sandbox: Sandbox,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    deferrable: bool,
) -> None:
    """Of a machine that is shut down under its pod, the kubelet may have told the container's answer to SIGTERM."""
    monkeypatch.setattr("airflow_gpu_provider.scaling.wait.pool_updates.EVERY", 1.0)
    name = f"spot-{'deferred' if deferrable else 'blocking'}"
    owner.auto_scaling_group(name, spot=True)
    pool = eks_pool(gpu_sandbox, name=name, asg_names=[name], max_nodes=1)
    run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, nodes=1))
    script = """
        case $AIRFLOW_GPU_ATTEMPT in 1) sleep 3; exit 0;; 2) sleep 3; exit 143;; 3) exec sleep 600;; esac
        echo trained in attempt $AIRFLOW_GPU_ATTEMPT
    """
    spot = Spot(owner)
    spot.takes_before_the_end_is_judged(monkeypatch)
    train = GpuPodOperator(
        task_id="train",
        gpu_pool=pool,
        image="busybox:1.36",
        cmds=["sh", "-c", script],
        on_preemption="resume",
        deferrable=deferrable,
        termination_grace_period=1,
    )
    thread = spot.takes_the_third_while_it_runs(pool)
    run(train)
    thread.join()
    log = capsys.readouterr().out
    assert "trained in attempt 4" in log
    why = r"EC2: terminated, Server\.SpotInstanceTermination: Spot instance termination"
    for told in (
        "ended with exit code 0 when its machine",
        "ended with exit code 143 when its machine",
        "left the cluster",
    ):
        assert re.search(rf"{told}[^\n]*{why}", log), told
    run(ScaleDownSensor(task_id="scale_down", gpu_pool=pool))


@pytest.mark.usefixtures("scaler")
def test_a_checkpoint_on_the_disk_of_others_spot_machines_is_refused(owner: Eks, gpu_sandbox: Sandbox) -> None:
    """The pool's spec does not say what the groups are."""
    owner.auto_scaling_group("spot-disk", spot=True)
    disk = client.V1Volume(name="disk", host_path=client.V1HostPathVolumeSource(path="/mnt"))
    train = GpuPodOperator(
        task_id="train",
        gpu_pool=eks_pool(gpu_sandbox, name="spot-disk", asg_names=["spot-disk"]),
        image="busybox:1.36",
        volumes=[disk],
        volume_mounts=[client.V1VolumeMount(name="disk", mount_path="/checkpoints")],
        checkpoint="/checkpoints",
    )
    with pytest.raises(CheckpointUnusable, match="hostPath, and a spot node"):
        run(train)
    core = client.CoreV1Api(owner.administrator)
    assert not core.list_namespaced_pod("default", label_selector=f"{POOL_LABEL}=spot-disk").items


@pytest.mark.usefixtures("scaler")
def test_a_stock_out_is_given_up_without_a_tag(gpu_sandbox: Sandbox, owner: Eks) -> None:
    """Launches are suspended for a moment, so that no machine with a pod is taken for one that comes just then."""
    elsewhere = {"VPCZoneIdentifier": gpu_sandbox.subnets[gpu_sandbox.zones[1]]}
    managed, dry, wet = (
        owner.node_group("managed"),
        owner.auto_scaling_group("dry"),
        owner.auto_scaling_group("wet", **elsewhere),
    )
    # Of a type that the catalogue does not have, it counts against the same quota.
    (other,) = owner.ec2.run_instances(ImageId="ami-1", MinCount=1, MaxCount=1, InstanceType="vt1.3xlarge")["Instances"]
    owner.hide_from_autoscaler(managed)

    def settled() -> list[Any]:
        """All but EKS's own verdict on a group that could not have a machine."""
        of_eks = owner.everything(managed, "managed")
        of_eks["node group"] |= {"health": None, "status": None}
        return [of_eks, owner.everything(dry, None), owner.everything(wet, None)]

    before = settled()
    pool = eks_pool(gpu_sandbox, node_groups=["managed"], asg_names=["dry", "wet"])
    gpu_sandbox.faults.add(Stockout(zone=gpu_sandbox.zones[0]))
    made = gpu_sandbox.aws.calls
    try:
        (node,) = run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, nodes=1))["nodes"]
        zero = run(ScaleDownSensor(task_id="scale_down", gpu_pool=pool))
    finally:
        gpu_sandbox.faults.clear()
    calls = gpu_sandbox.aws.calls - made
    owner.ec2.terminate_instances(InstanceIds=[other["InstanceId"]])
    assert (node["group"], zero["nodes"], zero["desired"]) == ("wet", 0, 0)
    assert calls["autoscaling:SuspendProcesses"] >= 2
    assert settled() == before
    leases = client.CoordinationV1Api(owner.administrator).list_namespaced_lease(DEMAND_NAMESPACE).items
    assert not [one for one in leases if one.metadata.name.startswith("suspension-")]


@pytest.mark.usefixtures("scaler")
def test_launches_that_a_dead_process_suspended_are_resumed(
    gpu_sandbox: Sandbox, owner: Eks, monkeypatch: pytest.MonkeyPatch
) -> None:
    asg = owner.node_group("left")
    pool = eks_pool(gpu_sandbox, node_groups=["left"])
    scaling = platform_for(pool)._eks.scaling  # type: ignore[attr-defined]

    def suspended() -> list[str]:
        return [each["ProcessName"] for each in owner.everything(asg, None)["group"]["SuspendedProcesses"]]

    owner.asg.suspend_processes(AutoScalingGroupName=asg, ScalingProcesses=["Launch"])
    reconciler = open_pool(pool, owner="", holder="tests", report=print)
    reconciler.reconcile()
    assert suspended() == ["Launch"]  # its owner's
    scaling._marks.set(asg, datetime.now(UTC) - timedelta(minutes=5))
    reconciler.snapshot()
    assert suspended() == ["Launch"]  # a look changes nothing
    assert "resumed launches of left" in "".join(reconciler.reconcile().log_lines)
    assert suspended() == []
    assert scaling._marks.read([{"AutoScalingGroupName": asg}]) == {}


@pytest.mark.usefixtures("scaler")
def test_a_plan_says_what_would_grow_and_what_to_know(gpu_sandbox: Sandbox, owner: Eks) -> None:
    owner.node_group("small", scalingConfig={"minSize": 0, "maxSize": 1, "desiredSize": 0})
    owner.auto_scaling_group("wide", zones=2)
    pool = eks_pool(gpu_sandbox, node_groups=["small"], asg_names=["wide"], max_nodes=5)
    made = gpu_sandbox.aws.calls

    plan = run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, nodes=1, dry_run=True))["plan"]

    zones = ", ".join(gpu_sandbox.zones[:2])
    assert plan[0] == "Plan for of-terraform:"
    assert plan[1] == f"  ^ small 0->1 (g6.xlarge on-demand in {gpu_sandbox.zones[0]} first)"
    assert "max_nodes is 5, and the groups' own limits allow 3" in plan[2]
    assert "wide: it is in 2 zones" in plan[3]
    assert "containers-roadmap#1453" in plan[3]
    assert "small: by the tag k8s.io/cluster-autoscaler/enabled a cluster-autoscaler" in plan[4]
    wide = next(c for c in platform_for(pool).candidates() if c.group == "wide")  # type: ignore[attr-defined]
    assert (wide.zone, wide.instance_type, wide.market) == (zones, "g6.xlarge", "ON_DEMAND")
    assert not [c for c in gpu_sandbox.aws.calls - made if not c.partition(":")[2].startswith(("Describe", "List"))]


@pytest.mark.usefixtures("scaler")
@pytest.mark.parametrize(
    ("fields", "nodes", "error", "says"),
    [
        ({"node_groups": ["gone"]}, 1, GroupNotFound, "has no node group gone; it has .*fixed"),
        ({"asg_names": ["gone"]}, 1, GroupNotFound, "no Auto Scaling group gone"),
        ({"node_groups": ["fixed"], "max_nodes": 4}, 3, PoolSpecError, "fixed at most 2"),
        ({"node_groups": ["fixed"], "instance_types": ["g5.xlarge"]}, 1, PoolDrift, "machines of type g6.xlarge"),
        ({"node_groups": ["tainted"]}, 1, PoolDrift, "with team=ml:NoSchedule"),
        ({"node_groups": ["cpus"]}, 1, PoolSpecError, "have no GPUs: m6i.2xlarge"),
    ],
)
def test_a_group_that_cannot_serve_is_refused_and_left(
    gpu_sandbox: Sandbox, owner: Eks, fields: dict[str, Any], nodes: int, error: type[Exception], says: str
) -> None:
    owner.node_group("fixed")
    for name in fields.get("node_groups", []):
        if name == "tainted":
            owner.node_group(name, taints=[{"key": "team", "value": "ml", "effect": "NO_SCHEDULE"}])
        if name == "cpus":
            owner.node_group(name, instanceTypes=["m6i.2xlarge"], amiType="AL2023_x86_64_STANDARD")
    pool = eks_pool(gpu_sandbox, **fields)
    made = gpu_sandbox.aws.calls
    with pytest.raises(error, match=says):
        run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, nodes=nodes))
    assert not [c for c in gpu_sandbox.aws.calls - made if not c.partition(":")[2].startswith(("Describe", "List"))]


@pytest.mark.usefixtures("scaler")
def test_a_group_that_is_named_twice(gpu_sandbox: Sandbox, owner: Eks) -> None:
    pool = eks_pool(gpu_sandbox, node_groups=["twice"], asg_names=[owner.node_group("twice")])
    with pytest.raises(PoolSpecError, match="is that of node group twice"):
        platform_for(pool).plan(1)


@pytest.mark.usefixtures("scaler")
@pytest.mark.parametrize("kind", ["node_groups", "asg_names"])
def test_tags_that_cluster_autoscaler_needs_are_for_the_owner_to_add(
    gpu_sandbox: Sandbox, owner: Eks, kind: str
) -> None:
    asg = owner.node_group("scaled-a") if kind == "node_groups" else owner.auto_scaling_group("scaled-b")
    names = ["scaled-a"] if kind == "node_groups" else [asg]
    pool = eks_pool(gpu_sandbox, scaling="autoscaler", taints=["nvidia.com/gpu=present:NoSchedule"], **{kind: names})
    tags = missing_tags(pool)
    assert {tag["ResourceId"] for tag in tags} == {asg}

    owner.tag(tags)
    assert platform_for(pool).plan(1).is_empty


def missing_tags(pool: GpuPool) -> list[dict[str, Any]]:
    """Return the tags of the command in the error that Ensure ends with."""
    with pytest.raises(AutoscalerTagsMissing, match="aws autoscaling create-or-update-tags") as raised:
        platform_for(pool).plan(1)
    (command,) = [part for part in raised.value.fix.partition("run: ")[2].split(" && ")]
    words = shlex.split(command)
    tags = [dict(pair.split("=", 1) for pair in word.split(",")) for word in words[words.index("--tags") + 1 :]]
    return [{**tag, "PropagateAtLaunch": False} for tag in tags]


@pytest.mark.usefixtures("scaler", "plugin_of_the_owner")
def test_an_autoscalers_night_in_a_group_of_others(gpu_sandbox: Sandbox, owner: Eks) -> None:
    """Under the scale-only roles and those that an autoscaler's pools need, and nothing else."""
    give_roles(owner.administrator, "scale-only.yaml", "autoscaler.yaml")
    until_it_reports(client.CoreV1Api(owner.administrator))
    labels = {OWNERS_LABEL: "terraform", "role": "grown"}  # the first is what the owner's plugin selects
    asg = owner.node_group("grown", labels=labels)
    of_owner = {"node_labels": labels, "taints": ["nvidia.com/gpu=present:NoSchedule"]}
    types = ["g6.xlarge"]  # which its pods require, of a group that has no node yet
    pool = eks_pool(gpu_sandbox, node_groups=["grown"], scaling="autoscaler", instance_types=types, **of_owner)
    owner.tag(missing_tags(pool))
    before = owner.everything(asg, "grown")

    assert one_night(pool, lambda: None) == [], "they come with their pods"

    assert owner.everything(asg, "grown") == before


@pytest.mark.usefixtures("scaler")
def test_two_pools_for_one_group(gpu_sandbox: Sandbox, owner: Eks) -> None:
    asg = owner.auto_scaling_group("shared")
    mine = eks_pool(gpu_sandbox, asg_names=["shared"])
    other = eks_pool(gpu_sandbox, name="of-another-dag", asg_names=["shared"])
    (node,) = run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=mine, nodes=1))["nodes"]

    with pytest.raises(PoolDrift, match="shared is scaled by pool of-terraform"):
        run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=other, nodes=1), dag_id="another")

    machines = owner.everything(asg, None)["group"]["Instances"]
    assert [each["InstanceId"] for each in machines] == [node["machine"]]
    labels = client.CoreV1Api(owner.administrator).read_node(node["name"]).metadata.labels
    assert (labels[POOL_LABEL], labels["role"]) == ("of-terraform", "train-gpu")
    assert run(ScaleDownSensor(task_id="scale_down", gpu_pool=mine))["nodes"] == 0


@pytest.mark.usefixtures("scaler")
def test_a_group_of_others_is_never_deleted_and_keeps_its_minimum(gpu_sandbox: Sandbox, owner: Eks) -> None:
    asg = owner.auto_scaling_group("kept", MinSize=1)
    pool = eks_pool(gpu_sandbox, asg_names=["kept"])
    reconciler = Reconciler(
        pool, platform_for(pool), platform_for(pool).cluster_access().api_client(), holder="test", report=print
    )
    key = DemandKey(installation="tests", dag_id="nightly", run_id="kept", pool=pool.name)
    reconciler.want(key, 1, datetime.now(UTC) + timedelta(hours=1))
    assert [action["DesiredCapacity"] for action in owner.actions(asg).values()] == [1]
    eventually(lambda: reconciler.reconcile().snapshot.nodes and reconciler.snapshot().nodes[0].usable)

    reconciler.delete_demand_and_reconcile(key)
    assert run(ScaleDownSensor(task_id="scale_down", gpu_pool=pool))["kept"] == ["kept: kept has a minimum size of 1"]
    assert run(DeleteGpuPoolOperator(task_id="delete", gpu_pool=pool))["deleted"] == []
    group = owner.everything(asg, None)
    assert (group["group"]["DesiredCapacity"], len(group["group"]["Instances"])) == (1, 1)
    assert group["scheduled actions"] == {}


@pytest.mark.usefixtures("scaler")
def test_a_lease_does_not_have_the_janitor_empty_a_group(gpu_sandbox: Sandbox, owner: Eks) -> None:
    """Another team's machine, in a group that the janitor's role may scale: it goes only if a DAG names the group."""
    asg = owner.auto_scaling_group("of-team-b", DesiredCapacity=1)
    owner.auto_scaling_group("ours")
    both = eks_pool(gpu_sandbox, name="both", asg_names=["ours", "of-team-b"])
    named, forged = (replace(both, name=name, asg_names=[name]) for name in ("ours", "of-team-b"))
    with PoolLock(owner.administrator, forged.name, "whoever may write Leases", spec=forged.serialize()):
        pass
    broken = {f"{DEMAND_NAMESPACE}/broken": "[" * 100_000}
    with PoolLock(owner.administrator, "broken", "whoever may write Leases", spec=broken):
        pass
    eventually(lambda: len(owner.everything(asg, None)["group"]["Instances"]) == 1)

    def reap(pool: EksGpuPool) -> list[str]:
        reaped = run(ReapGpuPoolsOperator(task_id="reap", gpu_pools=[pool]))
        return [each["pool"] for each in reaped]

    assert reap(named) == ["ours"]
    group = owner.everything(asg, None)["group"]
    assert (group["DesiredCapacity"], len(group["Instances"])) == (1, 1)
    assert {*reap(both)} == {"both", "of-team-b"}
    assert owner.everything(asg, None)["group"]["DesiredCapacity"] == 0


# -- GKE ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gke() -> Iterator[Sandbox]:
    timings = GoogleTimings(node_pool_create=0.3, patience=1.0, driver=0.5, launch_retry=1.0, stale=0.0)
    with Sandbox(platform="gke", boot_seconds=0.5, timings=timings, progress=print) as sandbox:
        yield sandbox


def test_two_nights_leave_a_node_pool_of_others_as_it_was(
    request: pytest.FixtureRequest, gke: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    google = gke.google
    give_roles(config.new_client_from_config(str(gke.kubeconfig)))
    monkeypatch.setenv("AIRFLOW_CONN_OWNER", json.dumps(google.connection()))
    where: dict[str, Any] = {
        "project_id": google.project_id,
        "location": google.location,
        "cluster_name": gke.cluster_name,
        "max_nodes": 2,
    }
    # Its owner's tool is, for once, this package: it knows how to make node pools.
    made_by = GkeGpuPool(name="terraform", machine_types=("g2-standard-4",), gcp_conn_id="owner", **where)
    owner = platform_for(made_by)
    made: dict[str, Any] = {
        "name": "terraform-gpu",
        "initial_node_count": 0,
        "locations": sorted(gke.zones)[:2],
        "config": {
            "machine_type": "g2-standard-4",
            "accelerators": [
                {
                    "accelerator_type": "nvidia-l4",
                    "accelerator_count": 1,
                    "gpu_driver_installation_config": {"gpu_driver_version": "LATEST"},
                }
            ],
            "resource_labels": {"owner": "terraform"},
            "max_run_duration": "86400s",
        },
        "maintenance_policy": {"exclusion_until_end_of_support": {"enabled": True}},
    }
    pools = owner._gke.node_pools  # type: ignore[attr-defined]
    pools._gke.call("create_node_pool", permission="", parent=pools._cluster_path, node_pool=made)
    eventually(lambda: (pools.describe("terraform-gpu") or {}).get("status") == "RUNNING")

    def everything() -> list[Any]:
        node_pool = pools.describe("terraform-gpu")
        paths = [url[url.index("projects/") :] for url in node_pool["instance_group_urls"]]
        return [node_pool, *(owner._gke.groups._compute.get(path, permission="") for path in paths)]  # type: ignore[attr-defined]

    role = documented_roles.google_role("gke-scale-only.json")
    account = google.add_identity("airflow-scaler", permissions=role)
    gke.authenticator.access_entries[account.email] = [GROUP]
    monkeypatch.setenv("AIRFLOW_CONN_SCALER", json.dumps(google.connection(account)))
    pool = GkeGpuPool(
        name="of-terraform",
        manage="scale",
        node_pools=("terraform-gpu",),
        machine_types=("g2-standard-4",),
        gcp_conn_id="scaler",
        **where,
    )
    before = everything()

    assert platform_for(pool).plan(1).grow == (
        f"terraform-gpu/{sorted(gke.zones)[0]} 0->1 (g2-standard-4 on-demand in {sorted(gke.zones)[0]} first)",
    )

    def another_spec_is_refused() -> None:
        other = EnsureGpuPoolOperator(task_id="ensure", gpu_pool=replace(pool, machine_types=()), nodes=1)
        with pytest.raises(PoolDrift, match="machine types g2-standard-4 instead of any"):
            run(other, dag_id="another")

    nodes = one_night(pool, another_spec_is_refused)
    gke.faults.add(Stockout(zone=sorted(gke.zones)[0]))
    try:
        nodes += one_night(pool, lambda: None)
    finally:
        gke.faults.clear()

    assert [node["zone"] for node in nodes] == sorted(gke.zones)[:2]
    assert everything() == before
    with pytest.raises(GroupNotFound, match=r"has no node pool gone; it has .*terraform-gpu"):
        platform_for(GkeGpuPool(name="x", manage="scale", node_pools=("gone",), gcp_conn_id="owner", **where)).plan(1)

    # An autoscaler that leaves the node pool alone would leave pods waiting for ever.
    scaled = replace(pool, scaling="autoscaler")
    with pytest.raises(AutoscalingDisabled, match="autoscaling is off in node pool terraform-gpu") as refused:
        run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=scaled, nodes=1))
    assert everything() == before
    assert not google.refused(account)
    role_record.hold("gke-scale-only.json", request.node.nodeid, google.permission_uses(account))
    command = shlex.split(refused.value.fix.partition("run: ")[2])
    assert command[:5] == ["gcloud", "container", "clusters", "update", gke.cluster_name]
    flags = dict(word.removeprefix("--").partition("=")[::2] for word in command[5:])
    where = {"node-pool": "terraform-gpu", "location": google.location, "project": google.project_id}
    assert flags == {"enable-autoscaling": "", "min-nodes": "0", "max-nodes": "2", **where}
    autoscaling = {"enabled": True, "min_node_count": 0, "max_node_count": int(flags["max-nodes"])}
    name = f"{pools._cluster_path}/nodePools/{flags['node-pool']}"
    pools._gke.call("set_node_pool_autoscaling", permission="", name=name, autoscaling=autoscaling)
    eventually(lambda: (pools.describe("terraform-gpu").get("autoscaling") or {}).get("enabled"))
    assert not platform_for(scaled).plan(1).notes
