"""What is left is found by the clouds' own names, long ones that they cut too; what is not theirs is not."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_gpu_provider.acceptance.account import in_cloud
from airflow_gpu_provider.errors import PermissionDenied
from airflow_gpu_provider.platforms.aws import cluster as eks_cluster
from airflow_gpu_provider.platforms.aws.template_data import template_name
from airflow_gpu_provider.platforms.google import cluster as gke_cluster
from airflow_gpu_provider.pools import EksGpuPool, GkeGpuPool

EKS = EksGpuPool(
    name="accept-train", cluster_name="k8s-ml", region="us-west-2", instance_types=["g6.xlarge"], max_nodes=1
)
GKE = GkeGpuPool(
    name="accept-train",
    project_id="acme-ml-1",
    location="us-central1",
    cluster_name="k8s-ml",
    machine_types=["g2-standard-4"],
    node_locations=["us-central1-a"],
    max_nodes=1,
)


def test_on_eks_groups_of_the_pool_are_found_whatever_they_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, group = "eks:cluster-name", "eks:nodegroup-name"
    groups = [
        {"AutoScalingGroupName": "eks-accept-train-a-g6-xlarge-c8e1", "Instances": []},
        {"AutoScalingGroupName": "eks-0af", "Instances": [1], "Tags": [{"Key": group, "Value": "accept-train-b"}]},
        {"AutoScalingGroupName": "eks-accept-train-a-1", "Instances": [], "Tags": [{"Key": cluster, "Value": "other"}]},
        {"AutoScalingGroupName": "eks-train-gpu-a-1", "Instances": [1]},
    ]
    long = "c" * 100
    cut = template_name(replace(EKS, cluster_name=long), f"accept-train-a-{'g' * 40}")
    names = ["k8s-ml/accept-train-a-g6-xlarge", "k8s-ml/train-gpu-a", "other/accept-train-a-g6-xlarge", "mine", cut]
    answers: dict[str, list[Any]] = {
        "describe_launch_templates": [{"LaunchTemplateName": name} for name in names],
        "list_nodegroups": ["accept-train-a-g6-xlarge", "train-gpu-a"],
        "describe_auto_scaling_groups": groups,
        "describe_scheduled_actions": [{"ScheduledActionName": "s", "AutoScalingGroupName": "eks-accept-train-a-c8e1"}],
        "describe_instances": [],
    }
    placement = {"PlacementGroups": [{"GroupName": name, "State": "available"} for name in names]}
    service = SimpleNamespace(
        items=lambda method, key, **params: iter(answers[method]), call=lambda method, **params: placement
    )
    clients = SimpleNamespace(eks=service, autoscaling=service, ec2=service)
    monkeypatch.setattr(eks_cluster, "AwsClients", lambda **_: clients)
    found = {each.what.partition(",")[0]: each.left for each in in_cloud([EKS])}
    assert found == {
        "node groups": ("accept-train-a-g6-xlarge",),
        "Auto Scaling groups": (
            "eks-accept-train-a-g6-xlarge-c8e1: 0 instances, active",
            "eks-0af: 1 instances, active",
        ),
        "scheduled actions": ("s of eks-accept-train-a-c8e1",),
        "instances": (),
        "launch templates": ("k8s-ml/accept-train-a-g6-xlarge",),
        "placement groups": ("k8s-ml/accept-train-a-g6-xlarge",),
    }
    of_long = {each.what.partition(",")[0]: each.left for each in in_cloud([replace(EKS, cluster_name=long)])}
    assert of_long["launch templates"] == (cut,)


def test_on_gke_a_list_that_may_not_be_had_says_why_and_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def items(path: str, key: str, *, permission: str) -> Any:
        if permission == "compute.instances.list":
            raise PermissionDenied("It may not compute.instances.list.")
        return iter(
            [{"name": "gke-k8s-ml-accept-train-a-g2-4c1-grp", "targetSize": 2}, {"name": "gke-k8s-ml-other-grp"}]
        )

    answer = {"node_pools": [{"name": "accept-train-a-g2-standard-4", "status": "STOPPING"}, {"name": "other"}]}
    clients = SimpleNamespace(
        compute=SimpleNamespace(items=items), gke=SimpleNamespace(call=lambda method, **params: answer)
    )
    monkeypatch.setattr(gke_cluster, "GoogleClients", lambda **_: clients)
    node_pools, groups, instances = in_cloud([GKE])
    assert node_pools.left == ("accept-train-a-g2-standard-4: STOPPING",)
    assert groups.left == ("gke-k8s-ml-accept-train-a-g2-4c1-grp: 2 instances",)
    assert (instances.left, "may not" in instances.unasked) == ((), True)
