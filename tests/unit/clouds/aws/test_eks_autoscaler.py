"""The tags from which cluster-autoscaler knows a group: what they say, and how a group that exists differs."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.clouds.aws import instance_types
from airflow_gpu_provider.clouds.aws.autoscaler_tags import (
    TagChange,
    node_labels,
    offered_notes,
    reported,
    tag_change,
    tag_command,
    wanted_tags,
)
from airflow_gpu_provider.clouds.aws.pool import ACCELERATOR_LABEL
from airflow_gpu_provider.clouds.aws.spec import changes
from airflow_gpu_provider.clouds.backoff import growth_notes
from airflow_gpu_provider.errors import PoolSpecError
from tests.unit.clouds.aws.test_eks_spec import as_described, spec

TYPE = "g6.12xlarge"
BY_EKS = {"k8s.io/cluster-autoscaler/enabled": "true", "k8s.io/cluster-autoscaler/k8s-ml": "owned"}


def pool(**fields: Any) -> EksGpuPool:
    usual = {"name": "train", "cluster_name": "k8s-ml", "region": "us-west-2", "instance_types": [TYPE], "max_nodes": 2}
    return EksGpuPool(**{**usual, "scaling": "autoscaler", **fields})


def asg(tags: dict[str, str]) -> dict[str, Any]:
    return {"Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}


def test_an_empty_group_is_described_in_cluster_autoscaler_s_words() -> None:
    told = pool(
        node_labels={"role": "train-gpu"},
        taints=["nvidia.com/gpu=true:NoSchedule", "team=ml:NoExecute"],
        autoscaling_options={"scaledownunneededtime": "5m"},
    )
    template = "k8s.io/cluster-autoscaler/node-template"
    assert wanted_tags(told, TYPE) == {
        **BY_EKS,
        f"{template}/label/role": "train-gpu",
        f"{template}/label/airflow-gpu-provider/pool": "train",
        f"{template}/label/k8s.amazonaws.com/accelerator": "nvidia-l4",
        f"{template}/taint/nvidia.com/gpu": "true:NoSchedule",
        f"{template}/taint/team": "ml:NoExecute",
        f"{template}/resources/nvidia.com/gpu": "4",
        f"{template}/autoscaling-options/scaledownunneededtime": "5m",
    }


@pytest.mark.parametrize("name", ["g6f.large", "g6f.4xlarge", "gr6f.4xlarge"])
def test_a_part_of_a_gpu_is_one_to_ask_for(name: str) -> None:
    """EC2 counts it as none, as it intends to (aws/aws-cli#9659), and a node has one."""
    tags = wanted_tags(pool(instance_types=[name]), name)
    assert tags["k8s.io/cluster-autoscaler/node-template/resources/nvidia.com/gpu"] == "1"


class Ec2:
    """Knows of a newer type with parts of a GPU, and of one with whole ones."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def items(self, call: str, key: str, *, InstanceTypes: list[str]) -> list[dict[str, Any]]:
        assert (call, key) == ("describe_instance_types", "InstanceTypes")
        self.asked += InstanceTypes
        gpus = {"g9f.large": {"Count": 0, "LogicalGpuCount": 1}, "g9.large": {"Count": 1, "LogicalGpuCount": 1}}
        return [{"InstanceType": name, "GpuInfo": {"Gpus": [gpus[name]]}} for name in InstanceTypes]


def test_a_newer_type_with_parts_of_a_gpu_is_refused_where_nothing_tells_cluster_autoscaler_of_them() -> None:
    ec2: Any = Ec2()
    newer = pool(instance_types=["g9f.large", "g9.large", TYPE], node_labels={ACCELERATOR_LABEL: "nvidia-l9"})
    with pytest.raises(PoolSpecError, match=r"no whole GPU for g9f.large, so.* scaling=\"direct\""):
        instance_types.require_visible_gpus(ec2, newer, newer.instance_types)
    instance_types.require_visible_gpus(ec2, newer, ["g9.large", TYPE, ""])
    assert ec2.asked == ["g9.large", "g9f.large", "g9.large"], "and never one of the catalogue"
    instance_types.require_visible_gpus(ec2, pool(scaling="direct", instance_types=["g9f.large"]), ["g9f.large"])
    assert len(ec2.asked) == 3


def test_the_nodes_carry_the_labels_that_the_tags_promise() -> None:
    told = pool(node_labels={"role": "train-gpu"})
    promised = {
        key.rpartition("label/")[2]: value for key, value in wanted_tags(told, TYPE).items() if "/label/" in key
    }
    carried = node_labels(told, TYPE)
    assert {key.rpartition("/")[2]: value for key, value in carried.items()} == {
        key.rpartition("/")[2]: value for key, value in promised.items()
    }
    assert node_labels(pool(scaling="direct"), TYPE) == {"airflow-gpu-provider/pool": "train"}


def test_a_group_that_this_package_sizes_is_not_for_autoscalers_to_find() -> None:
    assert wanted_tags(pool(scaling="direct"), TYPE) == {}
    assert tag_change(pool(scaling="direct"), TYPE, asg(BY_EKS)).remove == ("k8s.io/cluster-autoscaler/enabled",)
    told = {**BY_EKS, **wanted_tags(pool(), TYPE), "team": "ml"}
    change = tag_change(pool(scaling="direct"), TYPE, asg(told))
    assert not change.put
    assert set(change.remove) == {key for key in told if "node-template" in key or key.endswith("/enabled")}


def test_the_bill_knows_the_pool_and_what_the_user_says_by_tags_of_the_instances() -> None:
    change = tag_change(pool(scaling="direct", tags={"team": "ml"}), TYPE, asg({**BY_EKS, "team": "web"}))
    assert change.put_for_bill == {"airflow-gpu-provider/pool": "train", "team": "ml"}
    assert change.put == {}
    assert reported(change.words) == []


def test_a_plan_tells_of_what_autoscalers_read() -> None:
    change = tag_change(pool(), TYPE, asg(BY_EKS))
    assert reported(change.words) == [f"+{key}={value}" for key, value in change.put.items()]


keys = st.sampled_from([*wanted_tags(pool(), TYPE), "team", "k8s.io/cluster-autoscaler/node-template/label/old"])


@given(found=st.dictionaries(keys, st.sampled_from(["true", "owned", "train", "4", "x"])))
def test_after_the_change_nothing_differs(found: dict[str, str]) -> None:
    change = tag_change(pool(), TYPE, asg(found))
    put = {**change.put, **change.put_for_bill}
    after = {key: value for key, value in {**found, **put}.items() if key not in change.remove}
    assert tag_change(pool(), TYPE, asg(after)) == TagChange()
    assert after.items() >= wanted_tags(pool(), TYPE).items()
    assert after.get("team") == found.get("team")


def test_the_command_is_one_that_a_shell_and_the_aws_command_take() -> None:
    command = tag_command("eks-train", {"k8s.io/cluster-autoscaler/enabled": "true", "k": "a b"}, "us-west-2")
    words = shlex.split(command)
    assert words[:3] == ["aws", "autoscaling", "create-or-update-tags"]
    assert words[-1] == "ResourceId=eks-train,ResourceType=auto-scaling-group,Key=k,Value=a b,PropagateAtLaunch=false"


def test_the_plan_says_the_tags_and_no_growth() -> None:
    wanted = spec(scaling="autoscaler")
    name = wanted.candidate.group
    assert changes([wanted], {name: as_described(wanted)}, {name: ()}) == ()
    (change,) = changes([wanted], {name: as_described(wanted)}, {name: ("+a=b", "-c")})
    assert change.detail == "tags for cluster-autoscaler +a=b, -c"
    assert growth_notes(wanted.pool, 2, [wanted.candidate], [], datetime.now(UTC)) == ()


def test_changing_who_scales_shows_in_the_plan() -> None:
    direct, told = spec(), spec(scaling="autoscaler")
    (change,) = changes([told], {told.candidate.group: as_described(direct)}, {})
    assert "k8s.amazonaws.com/accelerator" in change.detail
    assert told.create_request()["labels"]["k8s.amazonaws.com/accelerator"] == "nvidia-l4"


@pytest.mark.parametrize(("scaling", "told"), [("direct", "gpu-a, gpu-b: by the tag"), ("autoscaler", None)])
def test_a_plan_tells_which_groups_of_others_a_cluster_autoscaler_may_size_too(scaling: str, told: str | None) -> None:
    groups = {"gpu-a": asg(BY_EKS), "gpu-b": asg(BY_EKS), "by-itself": asg({"team": "ml"})}
    notes = offered_notes(pool(scaling=scaling), groups)
    assert [note.startswith(told or "") for note in notes] == ([True] if told else [])
    assert offered_notes(pool(scaling=scaling), {"by-itself": groups["by-itself"]}) == ()
