"""Which nodes let in DNS queries of nodes that carry the cluster security group alone."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_gpu_provider.clouds.aws.network import admits_dns, security_groups

CLUSTER, NODES = "sg-cluster", "sg-nodes"


def rule(protocol: str = "udp", ports: tuple[int, int] | None = (53, 53), **sources: Any) -> dict[str, Any]:
    limits = dict(zip(("FromPort", "ToPort"), ports, strict=True)) if ports else {}
    return {"IpProtocol": protocol, **limits, **sources}


FROM_ITSELF = {"UserIdGroupPairs": [{"GroupId": NODES}]}
FROM_CLUSTER = {"UserIdGroupPairs": [{"GroupId": CLUSTER}]}


@pytest.mark.parametrize(
    ("rules", "admitted"),
    [
        ([rule(**FROM_ITSELF)], False),  # terraform-aws-eks's recommended rules
        ([rule(**FROM_ITSELF), rule(ports=(1025, 65535), **FROM_CLUSTER)], False),
        ([rule("tcp", **FROM_CLUSTER)], False),
        ([rule(**FROM_CLUSTER)], True),
        ([rule("-1", None, **FROM_CLUSTER)], True),
        ([rule("-1", None, IpRanges=[{"CidrIp": "10.0.0.0/16"}])], True),
        ([], False),
    ],
)
def test_dns_from_the_cluster_security_group(rules: list[dict[str, Any]], admitted: bool) -> None:
    assert admits_dns([{"IpPermissions": rules}], CLUSTER) is admitted


def test_what_may_not_be_read_is_not_held_against_it() -> None:
    assert admits_dns([], CLUSTER)


def test_a_template_names_groups_in_two_places() -> None:
    assert security_groups({}) == ()
    assert security_groups({"SecurityGroupIds": [NODES, CLUSTER]}) == (NODES, CLUSTER)
    assert security_groups({"NetworkInterfaces": [{"Groups": [NODES]}, {}]}) == (NODES,)
