"""What fast_start says in a group's launch template, by the group's EC2 type."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.clouds.aws.machine_types import arch_of, instance_types
from airflow_gpu_provider.clouds.aws.template_data import started_fast, template_data, uses_local_disks
from airflow_gpu_provider.clouds.aws.user_data import from_text
from airflow_gpu_provider.errors import PoolSpecError

ZONE = "us-west-2a"
OWN = {
    "apiVersion": "node.eks.aws/v1alpha1",
    "kind": "NodeConfig",
    "spec": {"kubelet": {"flags": ("--v=4",)}, "instance": {"localStorage": {"strategy": "Mount"}}},
}


def pool(*types: str, **fields: Any) -> EksGpuPool:
    return EksGpuPool(
        name="gpu",
        cluster_name="ml",
        region="us-west-2",
        instance_types=types or ("g6.4xlarge",),
        max_nodes=1,
        **{"fast_start": True, **fields},
    )


def said(made: EksGpuPool) -> list[tuple[int | None, dict[str, Any]]]:
    """Return each group's throughput, and the spec of its NodeConfig."""
    found = []
    for candidate in made.candidates([ZONE]):
        data = template_data(made, candidate) or {}
        ((volume,),) = (data["BlockDeviceMappings"],)
        encoded = data.get("UserData")
        spec = from_text(b64decode(encoded).decode())["spec"] if encoded else {}
        found.append((volume["Ebs"].get("Throughput"), json.loads(json.dumps(spec))))
    return found


FAST = {"instance": {"localStorage": {"strategy": "RAID0"}}, "featureGates": {"FastImagePull": True}}


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        (["g6.4xlarge"], [(None, FAST)]),
        (["g6.2xlarge"], [(None, FAST)]),
        *[([f"{family}.xlarge"], [(None, FAST)]) for family in ("g4dn", "g5", "g6", "g6e")],
        (["g6f.large"], [(None, {"instance": FAST["instance"]})]),  # 2 vCPUs
        (["p3.2xlarge"], [(600, {})]),
        (["g6.xlarge", "g6.4xlarge", "p3.8xlarge"], [(None, FAST), (None, FAST), (600, {})]),
    ],
)
def test_each_group_says_what_its_type_can_do(types: list[str], expected: Any) -> None:
    assert said(pool(*types)) == expected


def test_what_the_spec_says_itself_counts() -> None:
    ((throughput, spec),) = said(pool(user_data=OWN, disk={"throughput": 250}))
    assert throughput == 250
    assert spec == {**FAST, "kubelet": {"flags": ["--v=4"]}, "instance": {"localStorage": {"strategy": "Mount"}}}
    ((throughput, _),) = said(pool("p3.2xlarge", disk={"throughput": 250}))
    assert throughput == 250


def test_images_without_nodeadm_have_a_faster_volume() -> None:
    bottlerocket = pool(ami_type="BOTTLEROCKET_x86_64_NVIDIA")
    assert said(bottlerocket) == [(600, {})]


def test_a_pool_without_it_has_no_template() -> None:
    made = pool(fast_start=False)
    (candidate,) = made.candidates([ZONE])
    assert template_data(made, candidate) is None


@given(st.sampled_from([name for name in instance_types() if arch_of(name) == "amd64" and name[:3] not in ("p2.",)]))
def test_every_type_is_started_fast_in_one_way_and_the_spec_stays_valid(name: str) -> None:
    made = started_fast(pool(name), name)
    assert (made.user_data is not None) == uses_local_disks(made, name)
    assert ("throughput" in made.disk) != uses_local_disks(made, name)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"launch_template": "gpu-lt"}, "fast_start and launch_template exclude each other"),
        ({"fast_start": "yes"}, "True or False"),
        ({"manage": "scale", "node_groups": ["g"]}, "fast_start"),
    ],
)
def test_refuses_what_cannot_work(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(PoolSpecError) as raised:
        pool(**fields)
    assert says in str(raised.value)
