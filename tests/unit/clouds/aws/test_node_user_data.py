"""User data that a node would not boot with is refused when the DAG is parsed, with the place in it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider.clouds.aws.user_data import as_text, from_text
from airflow_gpu_provider.clouds.pool_kinds import deserialize_pool
from airflow_gpu_provider.errors import PoolSpecError
from tests.unit.clouds.aws.test_eks_pool import pool

AL2023, BOTTLEROCKET = "AL2023_x86_64_NVIDIA", "BOTTLEROCKET_x86_64_NVIDIA"
HEAD = {"apiVersion": "node.eks.aws/v1alpha1", "kind": "NodeConfig"}

names = st.lists(st.sampled_from(["example.com", "10.0.0.2"]), max_size=2)
configs = st.fixed_dictionaries(
    {},
    optional={
        "kubelet": st.fixed_dictionaries(
            {},
            optional={
                "config": st.just({"maxPods": 20}),
                "flags": st.just(["--v=2"]),
                "maxPodsExpression": st.just("1"),
            },
        ),
        "instance": st.fixed_dictionaries(
            {},
            optional={
                "localStorage": st.fixed_dictionaries(
                    {"strategy": st.sampled_from(["RAID0", "RAID10", "Mount"])},
                    optional={"disabledMounts": st.just(["PodLogs"]), "mountPath": st.just("/mnt")},
                ),
                "environment": st.just({"default": {"A": "b"}}),
                "network": st.fixed_dictionaries({}, optional={"nameservers": names, "domains": names}),
            },
        ),
        "featureGates": st.dictionaries(st.sampled_from(["FastImagePull", "InstanceIdNodeName"]), st.booleans()),
        "containerd": st.fixed_dictionaries(
            {}, optional={"config": st.just("version = 3"), "baseRuntimeSpec": st.just({})}
        ),
    },
)


@given(configs)
def test_each_field_that_nodeadm_documents_is_taken_and_survives(config: dict[str, Any]) -> None:
    spec = pool(user_data={**HEAD, "spec": config})
    assert deserialize_pool(spec.serialize()) == spec
    assert from_text(as_text(spec.user_data, AL2023)) == {**HEAD, "spec": config}


def test_yaml_is_the_same_as_an_object() -> None:
    text = "apiVersion: node.eks.aws/v1alpha1\nkind: NodeConfig\nspec:\n  featureGates: {FastImagePull: true}\n"
    wanted = as_text({**HEAD, "spec": {"featureGates": {"FastImagePull": True}}}, AL2023)
    assert as_text(pool(user_data=text).user_data, AL2023) == wanted


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (
            {"instance": {"localStorage": {"strategy": "RAID1"}}},
            "strategy has a value that it cannot have. Choose RAID0 or RAID10",
        ),
        ({"featureGates": {"FastImagePul": True}}, "no spec.featureGates.FastImagePul. Write FastImagePull."),
        ({"featureGates": {"FastImagePull": "yes"}}, "FastImagePull is a text, not true or false"),
        ({"kubelet": {"flags": "--v=2"}}, "spec.kubelet.flags is a text, not a list"),
        ({"kubelet": {"flags": [2]}}, "spec.kubelet.flags[0] is a number, not a text"),
        ({"instance": {"environment": {"default": {"A": 1}}}}, "environment.default.A is a number, not a text"),
        ({"instance": []}, "spec.instance is a list, not an object"),
        ([{"instance": {}}], "spec is a list, not an object"),
        (5, "spec is a number, not an object"),
        ({"cluster": {"name": "ml"}}, "sets spec.cluster, which EKS does"),
        ({"containerd": {"config": "x" * 17_000}}, "bytes, and EC2 takes 16384"),
    ],
)
def test_what_nodeadm_would_ignore_or_end_with_is_refused(spec: Any, says: str) -> None:
    with pytest.raises(PoolSpecError) as caught:
        pool(user_data={**HEAD, "spec": spec})
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("user_data", "says"),
    [
        ({**HEAD, "spc": {}}, "nodeadm's NodeConfig has no spc. Write spec."),
        ({"spec": {}}, "nodeadm's NodeConfig has no apiVersion. Begin with"),
        ({**HEAD, "kind": "Node", "spec": {}}, "kind has a value that it cannot have. Choose NodeConfig"),
        ("#!/bin/bash\necho", "it is not an object with fields"),
        ("a: [", "user_data cannot be read: line 1, column 5: "),
    ],
)
def test_and_what_is_no_node_config(user_data: Any, says: str) -> None:
    with pytest.raises(PoolSpecError) as caught:
        pool(user_data=user_data)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("user_data", "says"),
    [
        ("[settings.kernal]\nlockdown = 'none'", "Bottlerocket's settings has no settings.kernal. Write kernel."),
        ("[kernel]\nlockdown = 'none'", "has no kernel. Known are settings."),
        ("settings = ", "user_data cannot be read"),
        ("[settings]\nkubernetes = 1", "settings.kubernetes is a number, not an object"),
        ("[settings.kubernetes]\ncluster-name = 'ml'", "sets settings.kubernetes.cluster-name, which EKS does"),
        ({**HEAD, "spec": {}}, "it is Bottlerocket's settings. Give them as a text in TOML"),
    ],
)
def test_and_what_bottlerocket_would(user_data: Any, says: str) -> None:
    with pytest.raises(PoolSpecError) as caught:
        pool(ami_type=BOTTLEROCKET, user_data=user_data)
    assert says in str(caught.value)


def test_other_images_have_user_data_of_their_own_kind() -> None:
    with pytest.raises(PoolSpecError, match="for images of AL2023 and of Bottlerocket, and ami_type is AL2_x86_64_GPU"):
        pool(ami_type="AL2_x86_64_GPU", user_data={**HEAD, "spec": {}})


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"launch_template": "gpu", "disk": {"throughput": 600}}, "disk and launch_template exclude each other"),
        ({"disk": {"throughput": 124}}, "between 125 and 2000 MiB/s"),
        ({"disk": {"throughput": 1000}}, "gives with 3000 IOPS, a MiB/s for four. Set disk['iops'] to 4000 at least"),
        ({"disk": {"iops": 2999}}, "disk['iops']=2999 must be between 3000 and 80000"),
        ({"disk": {"size": 20, "iops": 16_000}}, "gives on 20 GiB, 500 for each. Set disk['size'] to 32 at least"),
    ],
)
def test_volumes_that_ec2_has_not_are_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(PoolSpecError) as caught:
        pool(**fields)
    assert says in str(caught.value)


def test_volumes_that_it_has_are_taken() -> None:
    pool(disk={"throughput": 750})
    pool(disk={"throughput": "1000", "iops": "4000"})
    pool(ami_type=BOTTLEROCKET, disk={"size": 200})
