"""Where a cluster can have GPU nodes: its subnets by zone, and the instance types that EC2 offers there."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from airflow_gpu_provider.errors import CloudError, PoolSpecError
from airflow_gpu_provider.platforms.aws_clients import AwsService
from airflow_gpu_provider.platforms.aws_errors import has_code, message_of
from airflow_gpu_provider.pools import EksGpuPool


def zone_subnets(ec2: AwsService, pool: EksGpuPool, cluster_subnets: Iterable[str]) -> dict[str, str]:
    """Return one subnet for each zone of the pool, in order of preference.

    Of the pool's own subnets the first named in a zone is taken; of the cluster's, a private one before a public
    one. Zones are in the pool's order, or by name.

    Raises:
        PoolSpecError: A zone that the pool names has no subnet, or a subnet does not exist.
    """
    by_zone = _first_by_zone(_described(ec2, pool, pool.subnets or tuple(cluster_subnets)), pool)
    missing = [zone for zone in pool.zones if zone not in by_zone]
    if missing:
        whose = "its subnets" if pool.subnets else f"the subnets of cluster {pool.cluster_name}"
        raise PoolSpecError(
            f"Pool {pool.name}: none of {whose} is in {', '.join(missing)}.",
            f"Choose zones among {', '.join(sorted(by_zone)) or 'those of the subnets'}, or name subnets there.",
            zones=missing,
        )
    return {zone: by_zone[zone] for zone in pool.zones or sorted(by_zone)}


def offered_types(ec2: AwsService, pool: EksGpuPool, zones: Collection[str]) -> set[tuple[str, str]]:
    """Return the (zone, instance type) pairs of the pool that EC2 offers."""
    offerings = ec2.items(
        "describe_instance_type_offerings",
        "InstanceTypeOfferings",
        LocationType="availability-zone",
        Filters=[
            {"Name": "instance-type", "Values": list(pool.instance_types)},
            {"Name": "location", "Values": sorted(zones)},
        ],
    )
    return {(offering["Location"], offering["InstanceType"]) for offering in offerings}


def _described(ec2: AwsService, pool: EksGpuPool, subnets: Sequence[str]) -> list[Mapping[str, Any]]:
    try:
        found = list(ec2.items("describe_subnets", "Subnets", SubnetIds=list(subnets)))
    except CloudError as error:
        if not has_code(error, "InvalidSubnetID.NotFound", "InvalidSubnetId.Malformed"):
            raise
        raise PoolSpecError(
            f"Pool {pool.name}: {message_of(error)}.", f"Correct the pool's subnets; its region is {pool.region}."
        ) from error
    return sorted(found, key=lambda subnet: subnets.index(subnet["SubnetId"]))


def _first_by_zone(subnets: Iterable[Mapping[str, Any]], pool: EksGpuPool) -> dict[str, str]:
    if not pool.subnets:
        subnets = sorted(subnets, key=lambda subnet: bool(subnet.get("MapPublicIpOnLaunch")))
    by_zone: dict[str, str] = {}
    for subnet in subnets:
        by_zone.setdefault(subnet["AvailabilityZone"], subnet["SubnetId"])
    return by_zone
