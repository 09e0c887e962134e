"""The VPC CNI that EFA-only interfaces need: by the image of the cluster's aws-node."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_gpu_provider.clouds.aws import vpc_cni
from airflow_gpu_provider.errors import PermissionDenied, PoolSpecError
from tests.unit.clouds.aws.test_efa import fabric
from tests.unit.clouds.aws.test_eks_pool import pool

ECR = "602401143452.dkr.ecr.us-west-2.amazonaws.com/amazon-k8s-cni"
SPEC = pool(instance_types=["p4d.24xlarge"], network="efa")
SEVERAL = fabric(**{"p4d.24xlarge": (4, 4)})


def aws_node(image: str) -> dict[str, Any]:
    agent = {"name": "aws-eks-nodeagent", "image": "amazon/aws-network-policy-agent:v1.0.0"}
    return {"spec": {"template": {"spec": {"containers": [agent, {"name": "aws-node", "image": image}]}}}}


class Access:
    def __init__(self) -> None:
        self.asked = 0

    def api_client(self) -> None:
        self.asked += 1


def checked(monkeypatch: pytest.MonkeyPatch, *found: dict[str, Any]) -> tuple[str, ...]:
    monkeypatch.setattr(vpc_cni, "list_items", lambda *_, **__: [*found])
    return vpc_cni.check(Access(), SPEC, SEVERAL)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("image", "is_enough"),
    [
        (f"{ECR}:v1.18.5-eksbuild.1", True),
        (f"{ECR}:v1.20.0", True),
        (f"{ECR}:v2.0.0", True),
        ("mirror.local/eks/amazon-k8s-cni:1.19.2", True),
        (f"{ECR}@sha256:00", True),
        ("quay.io/cilium/cilium:v1.10.0", True),
        (f"{ECR}:v1.18.4-eksbuild.3", False),
        (f"{ECR}:v1.9.7", False),
    ],
)
def test_older_ones_are_refused_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch, image: str, is_enough: bool
) -> None:
    if is_enough:
        assert checked(monkeypatch, aws_node(image)) == ()
        return
    with pytest.raises(
        PoolSpecError, match=r"p4d.24xlarge EFA-only interfaces, which the VPC CNI knows since 1\.18\.5"
    ) as caught:
        checked(monkeypatch, aws_node(image))
    assert "aws eks update-addon --cluster-name" in caught.value.fix


def test_a_cluster_with_another_cni_is_left_and_a_plain_interface_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checked(monkeypatch) == ()
    access = Access()
    assert vpc_cni.check(access, SPEC, fabric(**{"g6.8xlarge": (1, 1)})) == ()  # type: ignore[arg-type]
    assert access.asked == 0


def test_who_may_not_look_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise PermissionDenied("RBAC refuses to list daemonsets.")

    monkeypatch.setattr(vpc_cni, "list_items", refused)
    (note,) = vpc_cni.check(Access(), SPEC, SEVERAL)  # type: ignore[arg-type]
    assert note.endswith("is not checked: RBAC refuses to list daemonsets.")
