"""Which endpoint a pool uses, of those that a GKE cluster may have."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_gpu_provider import GkeGpuPool
from airflow_gpu_provider.clouds.google.cluster import address_of
from airflow_gpu_provider.errors import ClusterUnreachable, GpuError, PoolSpecError

DNS, PUBLIC, PRIVATE = "gke-1-2.us-central1.gke.goog", "203.0.113.7", "10.128.0.2"
OLD = {"endpoint": PUBLIC, "private_cluster_config": {"private_endpoint": PRIVATE}}
NEW = {
    "endpoint": PUBLIC,
    "control_plane_endpoints_config": {
        "dns_endpoint_config": {"endpoint": DNS, "allow_external_traffic": True},
        "ip_endpoints_config": {
            "enabled": True,
            "enable_public_endpoint": True,
            "public_endpoint": PUBLIC,
            "private_endpoint": PRIVATE,
        },
    },
}
PRIVATE_ONLY = {
    "endpoint": PRIVATE,
    "control_plane_endpoints_config": {
        "ip_endpoints_config": {"enabled": True, "enable_public_endpoint": False, "private_endpoint": PRIVATE}
    },
}


def dns_only(*, takes_users: bool) -> dict[str, Any]:
    dns = {"endpoint": DNS, "allow_external_traffic": takes_users}
    ip = {"enabled": False, "public_endpoint": "", "private_endpoint": ""}
    config = {"dns_endpoint_config": dns, "ip_endpoints_config": ip}
    return {"endpoint": "", "status": "RUNNING", "control_plane_endpoints_config": config}


def pool(**switches: bool) -> GkeGpuPool:
    return GkeGpuPool(
        name="train",
        project_id="my-project",
        location="us-central1",
        cluster_name="c",
        machine_types=["g2-standard-4"],
        max_nodes=1,
        **switches,
    )


@pytest.mark.parametrize(
    ("cluster", "switches", "address"),
    [
        (OLD, {}, PUBLIC),
        (OLD, {"endpoint": "internal"}, PRIVATE),
        (NEW, {}, PUBLIC),
        (NEW, {"endpoint": "internal"}, PRIVATE),
        (NEW, {"endpoint": "dns"}, DNS),
        (PRIVATE_ONLY, {}, PRIVATE),
        (PRIVATE_ONLY, {"endpoint": "internal"}, PRIVATE),
        (dns_only(takes_users=True), {"endpoint": "dns"}, DNS),
    ],
)
def test_the_endpoint_that_the_pool_asks_for(cluster: dict[str, Any], switches: dict[str, bool], address: str) -> None:
    assert address_of(cluster, pool(**switches)) == address


@pytest.mark.parametrize(
    ("cluster", "switches", "type_", "says"),
    [
        (dns_only(takes_users=True), {}, PoolSpecError, 'are switched off. Set endpoint="dns"'),
        (dns_only(takes_users=False), {"endpoint": "dns"}, PoolSpecError, "--enable-dns-access"),
        (OLD, {"endpoint": "dns"}, PoolSpecError, "has no DNS endpoint. Leave endpoint out"),
        ({"endpoint": PUBLIC}, {"endpoint": "internal"}, PoolSpecError, "Leave endpoint out"),
        ({"endpoint": "", "status": "PROVISIONING"}, {}, ClusterUnreachable, "it is PROVISIONING"),
        ({"endpoint": "", "status": "RUNNING"}, {}, PoolSpecError, "has no IP endpoint"),
    ],
)
def test_a_missing_one_is_named_with_its_switch(
    cluster: dict[str, Any], switches: dict[str, bool], type_: type[GpuError], says: str
) -> None:
    with pytest.raises(type_) as raised:
        address_of(cluster, pool(**switches))
    assert says in str(raised.value)
