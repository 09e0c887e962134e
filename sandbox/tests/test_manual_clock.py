"""A whole sandbox whose time a test moves: the example in docs/sandbox.md, nodes, drains, and the ways to move it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import CoreV1Api
from kubernetes.config import new_client_from_config

from gpu_sandbox import Sandbox, SandboxProcess
from gpu_sandbox.aws.observer import aws_client
from gpu_sandbox.cli import main
from gpu_sandbox.errors import ControlApiError
from gpu_sandbox.faults import Stockout
from gpu_sandbox.nodes import Image
from tests.sandbox.running import watched

PAGE = Path(__file__).parents[2] / "docs" / "sandbox.md"


@pytest.fixture(scope="module")
def gpu_sandbox() -> Iterator[Sandbox]:
    images = [Image(pattern="large:*", size=12 * 2**30)]
    with Sandbox(clock="manual", autoscaler="none", account_id="222222222222", images=images) as sandbox:
        yield sandbox


@pytest.fixture
def autoscaling(gpu_sandbox: Sandbox) -> Any:
    return aws_client(gpu_sandbox.aws, "autoscaling")


@pytest.fixture
def group(gpu_sandbox: Sandbox) -> Iterator[str]:
    """The Auto Scaling group of a spot node group in one zone, at size 0."""
    eks = aws_client(gpu_sandbox.aws, "eks")
    name = {"clusterName": gpu_sandbox.cluster_name, "nodegroupName": "train"}
    eks.create_nodegroup(
        **name,
        scalingConfig={"minSize": 0, "maxSize": 3, "desiredSize": 0},
        instanceTypes=["g6.xlarge"],
        capacityType="SPOT",
        amiType="AL2023_x86_64_NVIDIA",
        subnets=[gpu_sandbox.subnets["us-west-2a"]],
        nodeRole=gpu_sandbox.node_role_arn,
    )
    gpu_sandbox.advance(minutes=3)
    described = eks.describe_nodegroup(**name)["nodegroup"]
    assert described["status"] == "ACTIVE"
    yield described["resources"]["autoScalingGroups"][0]["name"]
    gpu_sandbox.faults.clear()
    eks.delete_nodegroup(**name)
    gpu_sandbox.advance(minutes=30)
    assert eks.list_nodegroups(clusterName=gpu_sandbox.cluster_name)["nodegroups"] == ["system"]
    assert nodes(gpu_sandbox) == []


def nodes(sandbox: Sandbox) -> list[str]:
    return [node["name"] for node in sandbox.describe()["nodes"] if node["name"] != "sandbox-system"]


def test_the_example_of_the_page(gpu_sandbox: Sandbox, autoscaling: Any, group: str) -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (example,) = (each for each in examples if "def test_a_night_of_trouble" in each)
    names: dict[str, Any] = {"timedelta": timedelta}
    exec(compile(example, str(PAGE), "exec"), names)
    names["test_a_night_of_trouble"](gpu_sandbox, autoscaling, group)


def test_a_node_joins_when_its_machine_has_booted_and_goes_with_it(
    gpu_sandbox: Sandbox, autoscaling: Any, group: str
) -> None:
    autoscaling.set_desired_capacity(AutoScalingGroupName=group, DesiredCapacity=2)
    gpu_sandbox.advance(5 + 35 + 45 - 1)  # a group's reaction, a launch, a boot
    assert (len(gpu_sandbox.describe()["booting"]), nodes(gpu_sandbox)) == (2, [])
    gpu_sandbox.advance(1)
    assert (len(gpu_sandbox.describe()["booting"]), len(nodes(gpu_sandbox))) == (0, 2)
    gpu_sandbox.faults.boot_seconds = 3600.0
    autoscaling.set_desired_capacity(AutoScalingGroupName=group, DesiredCapacity=3)
    gpu_sandbox.advance(minutes=59)
    assert len(nodes(gpu_sandbox)) == 2
    gpu_sandbox.faults.boot_seconds = None
    gpu_sandbox.advance()
    assert len(nodes(gpu_sandbox)) == 3
    autoscaling.set_desired_capacity(AutoScalingGroupName=group, DesiredCapacity=0)
    gpu_sandbox.advance(5 + 45 - 1)  # a group's reaction, drains without pods, an end
    assert len(nodes(gpu_sandbox)) == 3
    gpu_sandbox.advance(1)
    assert nodes(gpu_sandbox) == []


def test_an_instance_that_ends_while_it_boots_never_joins(gpu_sandbox: Sandbox, autoscaling: Any, group: str) -> None:
    autoscaling.set_desired_capacity(AutoScalingGroupName=group, DesiredCapacity=1)
    gpu_sandbox.advance(5 + 35)
    (booting,) = gpu_sandbox.describe()["booting"]
    assert booting["zone"] == "us-west-2a"
    autoscaling.set_desired_capacity(AutoScalingGroupName=group, DesiredCapacity=0)
    gpu_sandbox.advance(5 + 45 - 1)  # a group's reaction, and nearly the instance's end: it would have booted by now
    assert (gpu_sandbox.describe()["booting"], nodes(gpu_sandbox)) == ([], [])


def test_a_stock_out_launches_nothing(gpu_sandbox: Sandbox, autoscaling: Any, group: str) -> None:
    gpu_sandbox.faults.add(Stockout(zone="us-west-2a", instance_type="g6.xlarge"))
    autoscaling.set_desired_capacity(AutoScalingGroupName=group, DesiredCapacity=1)
    gpu_sandbox.advance(hours=1)
    assert (gpu_sandbox.describe()["booting"], nodes(gpu_sandbox)) == ([], [])


def test_a_drain_waits_for_pods_and_gives_up_by_the_clock(gpu_sandbox: Sandbox, autoscaling: Any, group: str) -> None:
    autoscaling.set_desired_capacity(AutoScalingGroupName=group, DesiredCapacity=1)
    gpu_sandbox.advance(minutes=2)
    (node,) = nodes(gpu_sandbox)
    call = gpu_sandbox.control_plane.request
    for name in ("free", "guarded"):
        container = {"name": "main", "image": "busybox:1.36", "command": ["sleep", "600"]}
        spec = {"nodeName": node, "terminationGracePeriodSeconds": 1, "containers": [container]}
        metadata = {"name": name, "labels": {"name": name}}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        assert call("POST", "/api/v1/namespaces/default/pods", pod)[0] == 201
    core = CoreV1Api(new_client_from_config(str(gpu_sandbox.kubeconfig)))
    for name in ("free", "guarded"):
        named = {"namespace": "default", "field_selector": f"metadata.name={name}"}
        watched(core.list_namespaced_pod, "0", lambda _, pod: pod.status.phase == "Running", **named)
    selector = {"matchLabels": {"name": "guarded"}}
    budget = {"metadata": {"name": "guarded"}, "spec": {"minAvailable": 1, "selector": selector}}
    assert call("POST", "/apis/policy/v1/namespaces/default/poddisruptionbudgets", budget)[0] == 201
    autoscaling.set_desired_capacity(AutoScalingGroupName=group, DesiredCapacity=0)
    gpu_sandbox.advance(minutes=15)
    pods = call("GET", "/api/v1/namespaces/default/pods")[1]["items"]
    assert [pod["metadata"]["name"] for pod in pods] == ["guarded"]
    assert nodes(gpu_sandbox) == [node]
    gpu_sandbox.advance(minutes=1)
    assert nodes(gpu_sandbox) == []


def test_a_pull_takes_as_long_as_the_bytes_of_the_image_on_the_nodes_disk(
    gpu_sandbox: Sandbox, autoscaling: Any, group: str
) -> None:
    autoscaling.set_desired_capacity(AutoScalingGroupName=group, DesiredCapacity=1)
    gpu_sandbox.advance(minutes=2)
    (node,) = nodes(gpu_sandbox)
    core = CoreV1Api(new_client_from_config(str(gpu_sandbox.kubeconfig)))

    def pull(name: str) -> None:
        container = {"name": "main", "image": "large:1", "command": ["sleep", "600"]}
        spec = {"nodeName": node, "terminationGracePeriodSeconds": 1, "containers": [container]}
        core.create_namespaced_pod("default", {"metadata": {"name": name}, "spec": spec})
        until(name, lambda event: event.reason == "Pulling")

    def until(name: str, is_it: Callable[[Any], bool]) -> Any:
        about = f"involvedObject.name={name}"
        return watched(
            core.list_namespaced_event, "0", lambda _, event: is_it(event), namespace="default", field_selector=about
        )[-1]

    pull("first")
    gpu_sandbox.advance(minutes=2)
    pull("second")  # of the same image, of which two minutes are over
    gpu_sandbox.advance(minutes=2)
    phases = [core.read_namespaced_pod(name, "default").status.phase for name in ("first", "second")]
    assert phases == ["Pending", "Pending"]
    gpu_sandbox.advance(minutes=1)  # 36 GiB written at 125 MiB/s: 295 s
    for name, seconds in (("first", "294.912s"), ("second", "174.912s")):
        pulled = until(name, lambda event: event.reason == "Pulled").message
        assert f'pulled image "large:1" in {seconds}' in pulled
        assert f"Image size: {12 * 2**30} bytes" in pulled


def test_another_process_moves_a_sandbox_of_its_own(gpu_sandbox_factory: Callable[..., SandboxProcess]) -> None:
    sandbox = gpu_sandbox_factory(clock="manual", autoscaler="none")

    def time() -> datetime:
        return datetime.fromisoformat(sandbox.describe()["time"])

    begin = time()
    assert time() == begin
    sandbox.advance(minutes=20, seconds=1)
    assert time() - begin == timedelta(minutes=20, seconds=1)
    assert main(["advance", "--name", sandbox.name, "--hours", "1", "--minutes", "1"]) == 0
    assert time() - begin == timedelta(hours=1, minutes=21, seconds=1)


def test_the_machines_own_time_is_nobodys_to_move(gpu_sandbox_factory: Callable[..., SandboxProcess]) -> None:
    with pytest.raises(ValueError, match="clock is 'system' or 'manual'; not 'sundial'"):
        Sandbox(clock="sundial")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="start it with clock='manual'"):
        Sandbox().advance(minutes=1)
    sandbox = gpu_sandbox_factory(autoscaler="none")
    with pytest.raises(ControlApiError, match="start it with clock='manual'"):
        sandbox.advance(minutes=1)
