"""What is left on EKS is found by AWS's own names, long ones that are cut too; what is not the pool's is not."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.clouds.aws import remains as of_aws
from airflow_gpu_provider.clouds.aws.template_data import template_name

EKS = EksGpuPool(
    name="accept-train", cluster_name="k8s-ml", region="us-west-2", instance_types=["g6.xlarge"], max_nodes=1
)


def instance(name: str, cluster: str) -> dict[str, Any]:
    tags = [{"Key": "eks:cluster-name", "Value": cluster}]
    return {"InstanceId": name, "InstanceType": "g6.xlarge", "State": {"Name": "running"}, "Tags": tags}


def test_what_the_pool_had_is_found_whatever_tag_of_ours_it_lost(monkeypatch: pytest.MonkeyPatch) -> None:
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
        "describe_instances": [{"Instances": [instance("i-1", "k8s-ml"), instance("i-2", "other")]}],
    }
    placement = {"PlacementGroups": [{"GroupName": name, "State": "available"} for name in names]}
    service = SimpleNamespace(
        items=lambda method, key, **params: iter(answers[method]), call=lambda method, **params: placement
    )
    clients = SimpleNamespace(eks=service, autoscaling=service, ec2=service)
    monkeypatch.setattr(of_aws, "AwsClients", lambda **_: clients)
    found = {each.what.partition(",")[0]: each.left for each in of_aws.remains(EKS.name, pool=EKS)}
    assert found == {
        "node groups": ("accept-train-a-g6-xlarge",),
        "Auto Scaling groups": (
            "eks-accept-train-a-g6-xlarge-c8e1: 0 instances, active",
            "eks-0af: 1 instances, active",
        ),
        "scheduled actions": ("s of eks-accept-train-a-c8e1",),
        "instances": ("i-1 (g6.xlarge, running)",),
        "launch templates": ("k8s-ml/accept-train-a-g6-xlarge",),
        "placement groups": ("k8s-ml/accept-train-a-g6-xlarge",),
    }
    of_long = of_aws.remains(EKS.name, pool=replace(EKS, cluster_name=long))
    assert [each.left for each in of_long if each.what.startswith("launch templates")] == [(cut,)]
