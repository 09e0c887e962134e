"""Which of a GKE cluster's endpoints a pool uses, and what is wrong where it has not got that one. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_gpu_provider.errors import ClusterUnreachable, PoolSpecError
from airflow_gpu_provider.pools import GkeGpuPool


def address_of(cluster: Mapping[str, Any], pool: GkeGpuPool) -> str:
    """Return the host of the API server that the pool's spec asks for, of container_v1's Cluster as a dictionary.

    `ip_endpoints_config` comes before the fields that it replaces, `endpoint` and `private_cluster_config`.

    Raises:
        ClusterUnreachable: The cluster is still being created.
        PoolSpecError: It has no endpoint of that kind, or one that takes no traffic of users.
    """
    config = cluster.get("control_plane_endpoints_config") or {}
    dns, ip = config.get("dns_endpoint_config") or {}, config.get("ip_endpoints_config") or {}
    if pool.use_dns_endpoint:
        return _dns_endpoint(dns, cluster, pool)
    if ip.get("enabled") is False:
        raise PoolSpecError(
            f"Pool {pool.name}: the IP endpoints of the GKE cluster {pool.cluster_name} are switched off.",
            "Set use_dns_endpoint=True, or switch them on (gcloud container clusters update --enable-ip-access).",
        )
    if pool.use_internal_ip:
        private = ip.get("private_endpoint") or (cluster.get("private_cluster_config") or {}).get("private_endpoint")
        return str(private) if private else _missing("private endpoint", "Set use_internal_ip=False.", cluster, pool)
    public = ip.get("public_endpoint") if ip.get("enable_public_endpoint") else ""
    # Of a cluster without a public endpoint, `endpoint` is the private one.
    endpoint = public or cluster.get("endpoint") or ip.get("private_endpoint")
    return str(endpoint) if endpoint else _missing("IP endpoint", "Set use_dns_endpoint=True.", cluster, pool)


def _dns_endpoint(dns: Mapping[str, Any], cluster: Mapping[str, Any], pool: GkeGpuPool) -> str:
    enable = "gcloud container clusters update --enable-dns-access"
    if not dns.get("endpoint"):
        return _missing("DNS endpoint", f"Set use_dns_endpoint=False, or give it one ({enable}).", cluster, pool)
    if not dns.get("allow_external_traffic"):
        raise PoolSpecError(
            f"Pool {pool.name}: the DNS endpoint of the GKE cluster {pool.cluster_name} takes no traffic of users.",
            f"Let it in ({enable}), or set use_dns_endpoint=False.",
        )
    return str(dns["endpoint"])


def _missing(what: str, fix: str, cluster: Mapping[str, Any], pool: GkeGpuPool) -> str:
    if cluster.get("status") == "PROVISIONING":
        raise ClusterUnreachable(
            f"The GKE cluster {pool.cluster_name} has no endpoint: it is PROVISIONING.", "Wait until it is RUNNING."
        )
    raise PoolSpecError(f"Pool {pool.name}: the GKE cluster {pool.cluster_name} has no {what}.", fix)
