"""What a group's launch template of ours says, as data: EC2 and EKS take it of any pool, and changes show by field."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

import pytest
from botocore.session import get_session
from botocore.validate import ParamValidator
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.clouds.aws.launch_templates import check_fits
from airflow_gpu_provider.clouds.aws.template_data import described, differences, mark, template_data, template_name
from airflow_gpu_provider.errors import PoolSpecError
from gpu_sandbox.aws.node_group_rules import check_template_data
from tests.unit.clouds.aws.test_eks_spec import ZONE, as_described, spec

AL2023, BOTTLEROCKET = "AL2023_x86_64_NVIDIA", "BOTTLEROCKET_x86_64_NVIDIA"
RAID0 = {
    "apiVersion": "node.eks.aws/v1alpha1",
    "kind": "NodeConfig",
    "spec": {"instance": {"localStorage": {"strategy": "RAID0"}}, "featureGates": {"FastImagePull": True}},
}
TOML = "[settings.kernel]\nlockdown = 'integrity'\n"
SHAPE = get_session().get_service_model("ec2").shape_for("RequestLaunchTemplateData")


@st.composite
def pools(draw: st.DrawFn) -> EksGpuPool:
    ami_type = draw(st.sampled_from([AL2023, BOTTLEROCKET]))
    size = draw(st.none() | st.integers(20, 16_384))
    iops = draw(st.none() | st.integers(3000, min(80_000, 500 * (size or 100))))
    fields = {
        "ami_type": ami_type,
        "disk": {
            "size": size,
            "iops": iops,
            "throughput": draw(st.none() | st.integers(125, min(2000, (iops or 3000) // 4))),
        },
        "user_data": draw(st.sampled_from([None, RAID0 if ami_type == AL2023 else TOML])),
    }
    return spec(**{name: value for name, value in fields.items() if value is not None}).pool


def data_of(pool: EksGpuPool) -> dict[str, Any] | None:
    return template_data(pool, pool.candidates([ZONE])[0])


@given(pools())
def test_ec2_and_eks_take_it_and_only_pools_that_need_it_have_one(pool: EksGpuPool) -> None:
    data = data_of(pool)
    assert (data is None) == (not pool.own_template_fields)
    if data is None:
        return
    assert not ParamValidator().validate(data, SHAPE).has_errors()
    check_fits(data, pool)
    check_template_data(data)
    request = spec(
        **{name: getattr(pool, name) for name in (*pool.own_template_fields, "ami_type", "disk")}
    ).create_request({"id": "lt-1"})
    assert "diskSize" not in request, "EKS refuses it beside a template"


@given(pools())
def test_whatever_asks_for_nothing_new_is_made_as_before(pool: EksGpuPool) -> None:
    plain = spec(ami_type=pool.ami_type)
    assert plain.template_data() is None
    assert "launchTemplate" not in plain.create_request()


@given(pools(), pools())
def test_a_version_differs_exactly_where_it_says_something_else(one: EksGpuPool, other: EksGpuPool) -> None:
    found, wanted = data_of(one), data_of(other)
    if found is None or wanted is None:
        return
    shown = {"VersionNumber": 1, "VersionDescription": mark(found), "LaunchTemplateData": found}
    told = differences(shown, wanted)
    assert bool(told) == (found != wanted)
    assert {each.field for each in told} == set(dict.fromkeys(each.field for each in told)), "each once"


def test_differences_are_told_field_by_field() -> None:
    found = data_of(spec(disk={"size": 100, "throughput": 125}, user_data=RAID0).pool)
    wanted = data_of(spec(disk={"size": 200, "throughput": 600}, user_data={**RAID0, "spec": {}}).pool)
    assert found is not None
    assert wanted is not None
    shown = {"VersionNumber": 3, "VersionDescription": mark(found), "LaunchTemplateData": found}
    assert [str(each) for each in differences(shown, wanted)] == [
        "/dev/xvda Throughput is 125, wanted 600",
        "/dev/xvda VolumeSize is 100, wanted 200",
        "UserData spec.featureGates.FastImagePull is True, wanted None",
        "UserData spec.instance.localStorage.strategy is RAID0, wanted None",
    ]


def test_a_version_that_somebody_else_made_is_replaced_whatever_it_says() -> None:
    wanted = data_of(spec(disk={"throughput": 600}).pool)
    assert wanted is not None
    shown = {"VersionNumber": 3, "VersionDescription": "by hand", "LaunchTemplateData": {**wanted, "UserData": "%"}}
    (difference,) = differences(shown, wanted)
    assert difference.field == "UserData"
    (difference,) = differences({**shown, "LaunchTemplateData": wanted}, wanted)
    assert str(difference) == "launch template is version 3, wanted a new version"


def test_it_says_what_ec2_calls_it() -> None:
    data = data_of(spec(ami_type=BOTTLEROCKET, disk={"size": 200}, user_data=TOML).pool)
    assert data == {
        "BlockDeviceMappings": [
            {
                "DeviceName": "/dev/xvdb",
                "Ebs": {"VolumeType": "gp3", "DeleteOnTermination": True, "VolumeSize": 200},
            }
        ],
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 2},
        "UserData": data and data["UserData"],
    }
    assert b64decode(data["UserData"]).decode() == TOML
    assert "/dev/xvdb VolumeSize 200" in described(data)
    assert "UserData settings.kernel.lockdown integrity" in described(data)


def test_user_data_of_amazon_linux_is_mime_with_one_part_for_nodeadm() -> None:
    from email import message_from_string
    from json import loads

    data = data_of(spec(user_data=RAID0).pool)
    assert data is not None
    (part,) = message_from_string(b64decode(data["UserData"]).decode()).get_payload()
    assert part.get_content_type() == "application/node.eks.aws"
    assert loads(part.get_payload()) == RAID0
    assert data["BlockDeviceMappings"][0]["DeviceName"] == "/dev/xvda", "EKS takes no diskSize beside the template"


def test_a_group_keeps_the_template_that_it_was_made_with() -> None:
    """EKS takes it from no group, so one that is no longer needed says what EKS itself would."""
    before = spec(disk={"throughput": 600})
    name = template_name(before.pool, "train-a-g6-xlarge")
    made = as_described(before, launchTemplate={"id": "lt-1", "name": name, "version": "1"})
    assert before.differences(made) == []
    plain = spec()
    assert plain.differences(made) == []
    data = plain.template_data(made)
    assert data is not None
    assert data["BlockDeviceMappings"][0]["Ebs"] == {
        "VolumeType": "gp3",
        "DeleteOnTermination": True,
        "VolumeSize": 100,
    }


def test_a_group_without_one_cannot_be_given_one() -> None:
    (difference,) = spec(disk={"throughput": 600}).differences(as_described(spec()))
    assert str(difference) == "launch_template is None, wanted one of its own, for disk"
    assert difference.update is None


def test_a_name_is_the_group_s_within_what_ec2_takes() -> None:
    assert template_name(spec().pool, "train-a-g6-xlarge") == "k8s-ml/train-a-g6-xlarge"
    long = [template_name(spec(cluster_name=f"{'c' * 99}{end}").pool, "g" * 63) for end in "ab"]
    assert [len(each) for each in long] == [128, 128]
    assert long[0] != long[1]


def test_a_field_that_is_not_used_changes_no_hash() -> None:
    assert spec().pool.spec_hash == "61074567f5bb9efe"
    assert spec(disk={"throughput": 600}).pool.spec_hash != spec().pool.spec_hash


def test_what_external_groups_have_is_theirs() -> None:
    with pytest.raises(PoolSpecError, match="the groups have theirs already"):
        EksGpuPool(
            name="train",
            cluster_name="ml",
            region="us-west-2",
            manage="scale",
            node_groups=["a"],
            max_nodes=1,
            user_data=TOML,
        )
