"""cluster-autoscaler's manifest."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from airflow_gpu_provider import EksGpuPool, GkeGpuPool
from airflow_gpu_provider.addons.cluster_autoscaler import is_autoscaler_image
from airflow_gpu_provider.clouds.aws.cluster_autoscaler import image_for, manifest
from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.operators.install_cluster_autoscaler import InstallClusterAutoscalerOperator

POOL = EksGpuPool(
    name="train",
    cluster_name="k8s-ml",
    region="us-west-2",
    instance_types=["g6.xlarge"],
    max_nodes=2,
    scaling="autoscaler",
)


def by_kind(**values: Any) -> dict[str, dict[str, Any]]:
    return {each["kind"]: each for each in yaml.safe_load_all(manifest(POOL, **{"image": "mirror/ca:1", **values}))}


def container(**values: Any) -> dict[str, Any]:
    (only,) = by_kind(**values)["Deployment"]["spec"]["template"]["spec"]["containers"]
    return dict(only)


def test_finds_the_groups_of_the_cluster_by_their_tags_with_sensible_flags() -> None:
    assert container()["args"] == [
        "--cloud-provider=aws",
        "--node-group-auto-discovery=asg:tag=k8s.io/cluster-autoscaler/enabled,k8s.io/cluster-autoscaler/k8s-ml",
        "--namespace=kube-system",
        "--expander=least-waste",
        "--balance-similar-node-groups=true",
    ]


def test_flags_come_last_each_as_it_is_given() -> None:
    """The last one of a name counts (Go's flag package), so they replace the defaults."""
    flags = ["--expander=priority", "--balancing-ignore-label=a", '--balancing-ignore-label=b: #"$x"']
    assert container(flags=flags)["args"][-3:] == flags


@pytest.mark.parametrize(
    ("kubernetes", "tag"),
    [
        ("1.30", "v1.30.0"),
        ("1.31", "v1.31.5"),
        ("1.33", "v1.33.5"),
        ("1.34", "v1.34.4"),
        ("1.36", "v1.36.1"),
        ("1.40", "v1.36.1"),
    ],
)
def test_the_image_is_of_the_cluster_s_minor_version(kubernetes: str, tag: str) -> None:
    """kubernetes/autoscaler#9244: from 1.35 on it waits for resource.k8s.io/v1, which Kubernetes 1.33 does not have."""
    assert image_for(kubernetes) == f"registry.k8s.io/autoscaling/cluster-autoscaler:{tag}"


def test_gke_brings_its_own() -> None:
    gke = GkeGpuPool(
        name="train",
        project_id="my-project",
        location="us-central1",
        cluster_name="k8s-ml",
        machine_types=["g2-standard-4"],
        max_nodes=1,
    )
    with pytest.raises(PoolSpecError, match="on EKS only"):
        InstallClusterAutoscalerOperator(task_id="install", gpu_pool=gke)


def test_the_role_and_the_image_are_where_they_belong() -> None:
    role = "arn:aws:iam::123456789012:role/autoscaler"
    assert by_kind(role_arn=role)["ServiceAccount"]["metadata"]["annotations"] == {"eks.amazonaws.com/role-arn": role}
    assert not by_kind()["ServiceAccount"]["metadata"]["annotations"]
    found = container()
    assert (found["image"], found["env"]) == ("mirror/ca:1", [{"name": "AWS_REGION", "value": "us-west-2"}])


def test_no_object_comes_before_what_it_needs() -> None:
    assert list(by_kind()) == [
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "Role",
        "RoleBinding",
        "Deployment",
    ]
    assert "$" not in json.dumps(by_kind())


@pytest.mark.parametrize(
    ("image", "is_one"),
    [
        ("registry.k8s.io/autoscaling/cluster-autoscaler:v1.36.1", True),
        ("localhost:5000/cluster-autoscaler-arm64@sha256:abc", True),
        ("cluster-autoscaler", True),
        ("registry.k8s.io/autoscaling/addon-resizer:1.8", False),
        ("example.com/cluster-autoscaler/exporter:1", False),
    ],
)
def test_knows_an_autoscaler_by_its_image(image: str, is_one: bool) -> None:
    assert is_autoscaler_image(image) == is_one
