"""A real cluster-autoscaler, pointed at the sandbox: a pod that waits has a node from zero, and the node goes again.

It may do what docs/iam/cluster-autoscaler.json allows, and nothing else.

It needs the program, which is not this project's: AIRFLOW_GPU_SANDBOX_CLUSTER_AUTOSCALER names it.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpu_sandbox import SandboxProcess
from sandbox.tests.autoscaling import STATUS_SHAPE, Eks, gpu_pod, shape_of
from tests.sandbox import documented_roles
from tests.sandbox.running import eventually

PROGRAM = "AIRFLOW_GPU_SANDBOX_CLUSTER_AUTOSCALER"
# It waits 30 s for a GPU pod whatever its flags; the rest is quick.
FLAGS = (
    "--cloud-provider=aws",
    "--leader-elect=false",
    "--address=127.0.0.1:0",
    "--aws-use-static-instance-list=true",
    "--balance-similar-node-groups",
    "--balancing-ignore-label=nodegroup-name",
    "--scan-interval=2s",
    "--scale-down-unneeded-time=10s",
    "--scale-down-delay-after-add=5s",
)


@contextmanager
def cluster_autoscaler(eks: Eks, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The program at work, with the sandbox's own variables, an IAM user of its own, and nothing else of this one's."""
    env = {**eks.env, **user_with_the_documented_policy(eks)}
    tags = f"k8s.io/cluster-autoscaler/enabled,k8s.io/cluster-autoscaler/{eks.sandbox.cluster_name}"
    arguments = [
        f"--node-group-auto-discovery=asg:tag={tags}",
        f"--kubeconfig={env['KUBECONFIG']}",
        f"--cloud-config={env['GPU_SANDBOX_CLOUD_CONFIG']}",
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [os.environ[PROGRAM], *FLAGS, *arguments],
            env={name: value for name, value in env.items() if name.startswith("AWS_")},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


def user_with_the_documented_policy(eks: Eks) -> dict[str, str]:
    iam, name = eks.client("iam"), "cluster-autoscaler"
    account = iam.get_user()["User"]["Arn"].split(":")[4]
    where = {"REGION": eks.env["AWS_DEFAULT_REGION"], "ACCOUNT": account, "CLUSTER": eks.sandbox.cluster_name}
    documented = documented_roles.policy("cluster-autoscaler.json", **where)
    iam.create_user(UserName=name)
    iam.put_user_policy(UserName=name, PolicyName="documented", PolicyDocument=json.dumps(documented))
    key = iam.create_access_key(UserName=name)["AccessKey"]
    return {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}


@pytest.mark.skipif(PROGRAM not in os.environ, reason=f"{PROGRAM} names no cluster-autoscaler")
def test_it_grows_a_group_from_zero_for_a_pod_and_shrinks_it_again(
    gpu_sandbox_factory: Callable[..., SandboxProcess], tmp_path: Path
) -> None:
    eks = Eks(gpu_sandbox_factory(autoscaler="none", boot_seconds=0.5, stale=0.0))
    eks.install_device_plugin()
    eks.create_group("train")
    eventually(lambda: eks.described("train")["status"] == "ACTIVE")
    asg = eks.asg_of("train")
    with cluster_autoscaler(eks, tmp_path / "log"):
        eks.create(gpu_pod("train", seconds=2, nodeSelector={"role": "train"}))
        eks.create(gpu_pod("intolerant", nodeSelector={"role": "train"}, tolerations=[]))
        eks.until_running("train")
        assert eks.events("TriggeredScaleUp", about="train") == [f"pod triggered scale-up: [{{{asg} 0->1 (max: 3)}}]"]
        (node,) = eks.gpu_nodes()
        assert node["spec"]["providerID"].rpartition("/")[2] in instances_of(eks, asg)

        eventually(lambda: eks.desired(asg) == 0, seconds=180)
        refused = eventually(lambda: eks.events("NotTriggerScaleUp", about="intolerant"), seconds=90)
        assert "1 node(s) had untolerated taint(s)" in refused[-1]
        assert eks.events("ScaleDown", about=node["metadata"]["name"]) == [
            "marked the node as toBeDeleted/unschedulable"
        ]
        assert shape_of(eks.status()) == STATUS_SHAPE
    assert "AccessDenied" not in (tmp_path / "log").read_text()


def instances_of(eks: Eks, asg: str) -> list[str]:
    groups = {group["name"]: group for group in eks.sandbox.describe()["groups"]}
    return [instance["instance_id"] for instance in groups[asg]["instances"]]
