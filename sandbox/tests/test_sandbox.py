"""The parts together: an instance that AWS launches becomes a Node, is drained, and is gone."""

from __future__ import annotations

import base64
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest import mock

import botocore.auth
import pytest
from botocore.session import Session as BotocoreSession
from botocore.signers import RequestSigner
from kubernetes import client, config

from gpu_sandbox import Sandbox
from gpu_sandbox.aws.observer import aws_client
from tests.sandbox.running import watched

ZONE = "us-west-2a"


@pytest.fixture
def core(gpu_sandbox: Sandbox) -> Iterator[client.CoreV1Api]:
    with config.new_client_from_config(str(gpu_sandbox.kubeconfig)) as api:
        yield client.CoreV1Api(api)


@pytest.fixture(autouse=True)
def no_faults_are_left(gpu_sandbox: Sandbox) -> Iterator[None]:
    yield
    gpu_sandbox.faults.clear()


@pytest.fixture
def aws(gpu_sandbox: Sandbox) -> Callable[[str], Any]:
    return lambda service: aws_client(gpu_sandbox.aws, service)


@pytest.fixture
def node_group(
    aws: Callable[[str], Any], gpu_sandbox: Sandbox, request: pytest.FixtureRequest
) -> Iterator[Callable[..., str]]:
    """Makes managed groups, and sees to it that their Nodes are gone after the test."""
    eks, names = aws("eks"), []

    def make(**overrides: Any) -> str:
        name = f"{request.node.name.replace('_', '-')[:40]}-{len(names)}"
        settings: dict[str, Any] = {
            "clusterName": gpu_sandbox.cluster_name,
            "nodegroupName": name,
            "subnets": [gpu_sandbox.subnets[ZONE]],
            "nodeRole": gpu_sandbox.node_role_arn,
            "instanceTypes": ["g6.xlarge"],
            "amiType": "AL2023_x86_64_NVIDIA",
            "scalingConfig": {"minSize": 0, "maxSize": 2, "desiredSize": 1},
        }
        eks.create_nodegroup(**(settings | overrides))
        names.append(name)
        return name

    yield make
    gpu_sandbox.faults.clear()
    for name in names:
        until(lambda name=name: deleted(eks, gpu_sandbox, name), what=f"the end of {name}'s updates")
    until(lambda: not any(nodes_of(gpu_sandbox, name) for name in names), what="the groups' Nodes gone")


def until(condition: Callable[[], Any], *, what: str, seconds: float = 120.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, f"not in {seconds} s: {what}"
        time.sleep(0.05)
    return result


def deleted(eks: Any, sandbox: Sandbox, node_group: str) -> bool:
    """Whether EKS accepted the deletion; it does not while an update is in progress."""
    try:
        eks.delete_nodegroup(clusterName=sandbox.cluster_name, nodegroupName=node_group)
    except eks.exceptions.ResourceInUseException:
        return False
    return True


def nodes_of(sandbox: Sandbox, node_group: str) -> list[dict[str, Any]]:
    return [node for node in sandbox.describe()["nodes"] if node["nodegroup"] == node_group]


def one_ready_node(sandbox: Sandbox, node_group: str) -> str:
    def ready() -> str | None:
        return next((node["name"] for node in nodes_of(sandbox, node_group) if node["ready"]), None)

    return str(until(ready, what=f"a Ready node of {node_group}"))


def resize(aws: Callable[[str], Any], sandbox: Sandbox, name: str, desired: int) -> None:
    eks = aws("eks")
    eks.get_waiter("nodegroup_active").wait(
        clusterName=sandbox.cluster_name, nodegroupName=name, WaiterConfig={"Delay": 1}
    )
    eks.update_nodegroup_config(
        clusterName=sandbox.cluster_name, nodegroupName=name, scalingConfig={"desiredSize": desired}
    )


def sleeper(name: str, node: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": "busybox", "command": ["sleep", "600"]}],
        },
    }


def test_an_ordinary_pod_has_a_place(gpu_sandbox: Sandbox, core: client.CoreV1Api) -> None:
    pod = {
        "metadata": {"name": "hello"},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "python:3.12", "command": ["python", "-c", "print('hello')"]}],
        },
    }
    core.create_namespaced_pod("default", pod)
    until(
        lambda: core.read_namespaced_pod("hello", "default").status.phase == "Succeeded",
        what="the pod's success",
    )
    log = core.read_namespaced_pod_log("hello", "default", _preload_content=False)
    assert log.data == b"hello\n"
    assert core.read_namespaced_pod("hello", "default").spec.node_name == "sandbox-system"
    core.delete_namespaced_pod("hello", "default", grace_period_seconds=0)


def test_an_instance_joins_as_eks_nodes_do(
    gpu_sandbox: Sandbox, core: client.CoreV1Api, node_group: Callable[..., str]
) -> None:
    taint = {"key": "nvidia.com/gpu", "value": "true", "effect": "NO_SCHEDULE"}
    name = node_group(labels={"pool": "train"}, taints=[taint])
    node = core.read_node(one_ready_node(gpu_sandbox, name))
    labels = node.metadata.labels
    assert labels["eks.amazonaws.com/nodegroup"] == name
    assert labels["eks.amazonaws.com/capacityType"] == "ON_DEMAND"
    assert labels["topology.kubernetes.io/zone"] == ZONE
    assert labels["node.kubernetes.io/instance-type"] == "g6.xlarge"
    assert labels["pool"] == "train"
    assert ("nvidia.com/gpu", "true", "NoSchedule") in [(t.key, t.value, t.effect) for t in node.spec.taints]
    assert node.spec.provider_id.startswith(f"aws:///{ZONE}/i-")
    assert node.status.capacity["cpu"] == "4"
    # No device plugin runs there, so Ready comes without GPUs.
    assert node.status.allocatable.get("nvidia.com/gpu", "0") == "0"


def test_scale_in_drains_first(
    gpu_sandbox: Sandbox, core: client.CoreV1Api, aws: Callable[[str], Any], node_group: Callable[..., str]
) -> None:
    name = node_group()
    node = one_ready_node(gpu_sandbox, name)
    core.create_namespaced_pod("default", sleeper("evicted", node))
    until(
        lambda: core.read_namespaced_pod("evicted", "default").status.phase == "Running",
        what="the pod running",
    )
    before = core.list_node().metadata.resource_version
    resize(aws, gpu_sandbox, name, 0)
    watched(core.list_node, before, lambda _, each: each.metadata.name == node and each.spec.unschedulable)
    until(lambda: not pod_names(core, "evicted"), what="the pod evicted")
    until(lambda: not nodes_of(gpu_sandbox, name), what="the Node gone")

    def instances() -> list[Any]:
        return [group["instances"] for group in gpu_sandbox.describe()["groups"] if group["nodegroup"] == name]

    until(lambda: instances() == [[]], what="the instance out of its group")


def test_a_drain_waits_for_a_disruption_budget_until_aws_does_not(
    gpu_sandbox: Sandbox, core: client.CoreV1Api, aws: Callable[[str], Any], node_group: Callable[..., str]
) -> None:
    name = node_group()
    node = one_ready_node(gpu_sandbox, name)
    pod = sleeper("guarded", node)
    pod["metadata"]["labels"] = {"app": "guarded"}
    core.create_namespaced_pod("default", pod)
    # A budget guards no pod that has not started.
    until(
        lambda: core.read_namespaced_pod("guarded", "default").status.phase == "Running",
        what="the pod running",
    )
    policy = client.PolicyV1Api(core.api_client)
    budget = {
        "metadata": {"name": "guarded"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}},
    }
    policy.create_namespaced_pod_disruption_budget("default", budget)
    resize(aws, gpu_sandbox, name, 0)
    until(lambda: any(n["cordoned"] for n in nodes_of(gpu_sandbox, name)), what="the Node cordoned")
    assert pod_names(core, "guarded") == ["guarded"]
    policy.delete_namespaced_pod_disruption_budget("guarded", "default")
    until(lambda: not nodes_of(gpu_sandbox, name), what="the Node gone once the budget is")


def test_an_api_server_that_is_away_loses_no_event(
    gpu_sandbox: Sandbox, aws: Callable[[str], Any], node_group: Callable[..., str]
) -> None:
    name = node_group()
    one_ready_node(gpu_sandbox, name)
    resize(aws, gpu_sandbox, name, 0)
    gpu_sandbox.restart_apiserver(down_seconds=3)
    until(
        lambda: gpu_sandbox.describe()["api_server"] and not nodes_of(gpu_sandbox, name),
        what="the Node gone",
    )


def test_an_instance_that_boots_while_the_api_server_is_away_joins_after_it(
    gpu_sandbox: Sandbox, node_group: Callable[..., str]
) -> None:
    gpu_sandbox.faults.boot_seconds = 600
    name = node_group()
    until(lambda: gpu_sandbox.describe()["booting"], what="an instance that boots")
    restart = threading.Thread(target=gpu_sandbox.restart_apiserver, kwargs={"down_seconds": 3})
    restart.start()
    until(lambda: "kube-apiserver" not in gpu_sandbox.control_plane.pids() or not restart.is_alive(), what="it away")
    gpu_sandbox.faults.boot_seconds = 0
    restart.join()
    one_ready_node(gpu_sandbox, name)


def test_a_spot_notice_is_an_event_of_the_node(
    gpu_sandbox: Sandbox, core: client.CoreV1Api, node_group: Callable[..., str]
) -> None:
    node = one_ready_node(gpu_sandbox, node_group(capacityType="SPOT"))
    instance_id = core.read_node(node).spec.provider_id.rsplit("/", 1)[1]
    gpu_sandbox.aws.interrupt_spot(instance_id)
    events = until(
        lambda: (
            core.list_namespaced_event(
                "default", field_selector=f"involvedObject.name={node},reason=SpotInterruption"
            ).items
        ),
        what="the event",
    )
    assert instance_id in events[0].message


class TestLogin:
    """EKS's way in: a presigned STS request is the bearer token."""

    def test_the_accounts_user_is_administrator(self, gpu_sandbox: Sandbox, gpu_sandbox_env: dict[str, str]) -> None:
        assert whoami(gpu_sandbox, eks_token(gpu_sandbox.cluster_name)) == 200

    def test_a_token_of_another_cluster_is_401(self, gpu_sandbox: Sandbox, gpu_sandbox_env: dict[str, str]) -> None:
        assert whoami(gpu_sandbox, eks_token("another-cluster")) == 401

    def test_a_token_of_a_key_that_aws_does_not_know_is_401(
        self, gpu_sandbox: Sandbox, gpu_sandbox_env: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
        assert whoami(gpu_sandbox, eks_token(gpu_sandbox.cluster_name)) == 401

    def test_a_token_of_sixteen_minutes_ago_is_401(self, gpu_sandbox: Sandbox, gpu_sandbox_env: dict[str, str]) -> None:
        old = datetime.now(UTC).replace(tzinfo=None) - timedelta(minutes=16)
        with mock.patch.object(botocore.auth, "get_current_datetime", return_value=old):
            token = eks_token(gpu_sandbox.cluster_name)
        assert whoami(gpu_sandbox, token) == 401

    def test_an_access_entry_takes_the_administration_away(
        self, gpu_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        user = gpu_sandbox.aws.add_identity("airflow")
        gpu_sandbox.authenticator.access_entries[user.arn] = ["gpu-scalers"]
        for name, value in gpu_sandbox.aws.env(user).items():
            monkeypatch.setenv(name, value)
        assert whoami(gpu_sandbox, eks_token(gpu_sandbox.cluster_name)) == 403


def pod_names(core: client.CoreV1Api, name: str) -> list[str]:
    pods = core.list_namespaced_pod("default", field_selector=f"metadata.name={name}").items
    return [pod.metadata.name for pod in pods]


def eks_token(cluster_name: str) -> str:
    """As `aws eks get-token` makes it."""
    session = BotocoreSession()
    sts = session.create_client("sts", region_name="us-west-2")
    signer = RequestSigner(
        sts.meta.service_model.service_id,
        "us-west-2",
        "sts",
        "v4",
        session.get_credentials(),
        session.get_component("event_emitter"),
    )
    url = signer.generate_presigned_url(
        {
            "method": "GET",
            "url": f"{sts.meta.endpoint_url}/?Action=GetCallerIdentity&Version=2011-06-15",
            "body": {},
            "headers": {"x-k8s-aws-id": cluster_name},
            "context": {},
        },
        region_name="us-west-2",
        expires_in=60,
        operation_name="",
    )
    return "k8s-aws-v1." + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")


def whoami(sandbox: Sandbox, token: str) -> int:
    """The status of a list of Nodes with this bearer token."""
    authority = base64.b64decode(sandbox.control_plane.ca_data).decode()
    request = urllib.request.Request(
        f"{sandbox.control_plane.server}/api/v1/nodes", headers={"Authorization": f"Bearer {token}"}
    )
    try:
        with urllib.request.urlopen(request, context=ssl.create_default_context(cadata=authority)) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
