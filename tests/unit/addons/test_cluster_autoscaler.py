"""cluster-autoscaler's objects and flags."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
import yaml

from airflow_gpu_provider.addons.cluster_autoscaler import ClusterAutoscaler, is_autoscaler_image
from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.operators.install_cluster_autoscaler import InstallClusterAutoscalerOperator
from airflow_gpu_provider.pools import EksGpuPool, GkeGpuPool


def pool(**fields: Any) -> EksGpuPool:
    usual = {"name": "train", "cluster_name": "k8s-ml", "region": "us-west-2", "max_nodes": 2}
    return EksGpuPool(**{**usual, "instance_types": ["g6.xlarge"], "scaling": "autoscaler", **fields})


def by_kind(autoscaler: ClusterAutoscaler) -> dict[str, dict[str, Any]]:
    return {manifest["kind"]: manifest for manifest in autoscaler.manifests()}


def test_finds_the_groups_of_the_cluster_by_their_tags_with_sensible_options() -> None:
    assert ClusterAutoscaler(pool=pool()).arguments == [
        "--cloud-provider=aws",
        "--node-group-auto-discovery=asg:tag=k8s.io/cluster-autoscaler/enabled,k8s.io/cluster-autoscaler/k8s-ml",
        "--namespace=kube-system",
        "--expander=least-waste",
        "--balance-similar-node-groups=true",
    ]


def test_options_are_written_as_go_reads_them() -> None:
    options = {
        "scale-down-unneeded-time": timedelta(minutes=5),
        "scale-down-utilization-threshold": 0.4,
        "skip-nodes-with-system-pods": False,
        "balancing-ignore-label": ["a", "b"],
        "expander": "priority",
    }
    arguments = ClusterAutoscaler(pool=pool(), options=options).arguments
    assert arguments[3:] == [
        "--expander=priority",
        "--balance-similar-node-groups=true",
        "--scale-down-unneeded-time=300s",
        "--scale-down-utilization-threshold=0.4",
        "--skip-nodes-with-system-pods=false",
        "--balancing-ignore-label=a",
        "--balancing-ignore-label=b",
    ]


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("scale-down-unneded-time", "Did you mean scale-down-unneeded-time?"),
        ("--expander", "Did you mean expander?"),
        ("node-group-auto-discovery", "is set by this package"),
        ("zzz", "without the dashes"),
    ],
)
def test_unknown_and_fixed_options_are_refused_when_the_dag_is_parsed(option: str, says: str) -> None:
    with pytest.raises(PoolSpecError, match=re.escape(says)):
        InstallClusterAutoscalerOperator(task_id="install", gpu_pool=pool(), options={option: "1"})


@pytest.mark.parametrize("value", [False, "false", "False"])
def test_an_option_that_ends_it_is_refused(value: object) -> None:
    """kubernetes/autoscaler#10278: "locked on (setting it to false triggers klog.Fatalf)"."""
    options = {"enable-dynamic-resource-allocation": value}
    with pytest.raises(PoolSpecError, match="ends at once with enable-dynamic-resource-allocation=false"):
        InstallClusterAutoscalerOperator(task_id="install", gpu_pool=pool(), options=options)
    assert ClusterAutoscaler(pool=pool(), options={"enable-dynamic-resource-allocation": True}).arguments


@pytest.mark.parametrize(
    ("kubernetes", "tag"),
    [
        (None, "v1.36.1"),
        ("1.30", "v1.30.0"),
        ("1.31", "v1.31.5"),
        ("1.33", "v1.33.5"),
        ("1.34", "v1.34.4"),
        ("1.36", "v1.36.1"),
        ("1.40", "v1.36.1"),
    ],
)
def test_the_image_is_of_the_cluster_s_minor_version(kubernetes: str | None, tag: str) -> None:
    autoscaler = ClusterAutoscaler(pool=pool(), kubernetes=kubernetes)
    assert autoscaler.whole_image == f"registry.k8s.io/autoscaling/cluster-autoscaler:{tag}"
    assert ClusterAutoscaler(pool=pool(), version="v1.29.5", kubernetes=kubernetes).whole_image.endswith(":v1.29.5")


@pytest.mark.parametrize(
    ("chosen", "kubernetes", "is_refused"),
    [
        ({"version": "v1.36.1"}, "1.33", True),
        ({"version": "v1.35.0"}, "1.31", True),
        ({"image": "mirror:5000/ca:v1.35.2@sha256:abc"}, "1.33", True),
        ({"version": "v1.35.0"}, "1.34", False),
        ({"version": "v1.34.4"}, "1.33", False),
        ({"image": "mirror:5000/ca:nightly"}, "1.33", False),
        ({"image": "mirror:5000/ca@sha256:abc"}, "1.33", False),
    ],
)
def test_an_image_that_never_starts_in_the_cluster_is_refused(
    chosen: dict[str, str], kubernetes: str, is_refused: bool
) -> None:
    """kubernetes/autoscaler#9244: from 1.35 on it waits for resource.k8s.io/v1 for ever."""
    if not is_refused:
        ClusterAutoscaler(pool=pool(), kubernetes=kubernetes, **chosen)
        return
    with pytest.raises(PoolSpecError, match=rf"never starts in a cluster with Kubernetes {kubernetes}"):
        ClusterAutoscaler(pool=pool(), kubernetes=kubernetes, **chosen)


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


def test_the_expander_s_priorities_are_the_pool_s_order() -> None:
    told = pool(instance_types=["g6.xlarge", "g5.xlarge"], capacity_types=["SPOT", "ON_DEMAND"])
    config = by_kind(ClusterAutoscaler(pool=told, options={"expander": "priority,least-waste"}))["ConfigMap"]
    priorities = yaml.safe_load(config["data"]["priorities"])

    def best(asg: str) -> int:
        return max(number for number, patterns in priorities.items() if any(re.match(p, asg) for p in patterns))

    uuid = "10c9d5b4-7a1b-6c1e-7f0e-1f2d3c4b5a69"
    order = [f"eks-{candidate.group}-{uuid}" for candidate in told.candidates(["us-west-2a"])]
    assert [best(asg) for asg in order] == [40, 30, 20, 10]
    assert best("eks-cpu-nodes-1234") == 1
    assert "ConfigMap" not in by_kind(ClusterAutoscaler(pool=told))


def test_named_groups_keep_their_order_too() -> None:
    named = EksGpuPool(
        name="train",
        cluster_name="k8s-ml",
        region="us-west-2",
        max_nodes=1,
        instance_types=(),
        manage="scale",
        scaling="autoscaler",
        node_groups=["gpu-spot"],
        asg_names=["gpu-own"],
    )
    config = by_kind(ClusterAutoscaler(pool=named, options={"expander": "priority"}))["ConfigMap"]
    first, second, _ = yaml.safe_load(config["data"]["priorities"]).values()
    assert re.match(first[0], "eks-gpu-spot-10c9d5b4-7a1b-6c1e-7f0e-1f2d3c4b5a69")
    assert re.match(second[0], "gpu-own")


def test_the_role_and_the_image_are_where_they_belong() -> None:
    role = "arn:aws:iam::123456789012:role/autoscaler"
    objects = by_kind(ClusterAutoscaler(pool=pool(), service_account_role_arn=role, image="mirror/ca:1"))
    assert objects["ServiceAccount"]["metadata"]["annotations"] == {"eks.amazonaws.com/role-arn": role}
    (container,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert (container["image"], container["env"]) == ("mirror/ca:1", [{"name": "AWS_REGION", "value": "us-west-2"}])


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


def test_renders_without_a_cluster() -> None:
    install = InstallClusterAutoscalerOperator(task_id="install", gpu_pool=pool(), render_only=True)
    text = install.execute({})  # type: ignore[typeddict-item]
    kinds = [manifest["kind"] for manifest in yaml.safe_load_all(str(text))]
    assert kinds == ["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "Deployment"]
