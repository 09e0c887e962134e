"""What EC2 asks for a spot machine now, by type and zone: DescribeSpotPriceHistory, whose newest entry is the price.

From a StartTime on it answers each change, and the last one before ("Spot Instance pricing history", EC2 user guide).
EC2 tells spot prices in US dollars, in China in yuan.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta

from airflow_gpu_provider.platforms.aws.clients import AwsService

_PRODUCT = "Linux/UNIX"
_CLOCKS_APART = timedelta(hours=1)


def currency_of(region: str) -> str:
    """Return the currency of a region's spot prices."""
    return "CNY" if region.startswith("cn-") else "USD"


def read(ec2: AwsService, types: Collection[str]) -> dict[tuple[str, str], float]:
    """Return the prices of an hour, by type and zone.

    Raises:
        CloudError: EC2 does not answer.
        PermissionDenied: The identity may not read them.
    """
    entries = ec2.items(
        "describe_spot_price_history",
        "SpotPriceHistory",
        InstanceTypes=sorted(types),
        ProductDescriptions=[_PRODUCT],
        StartTime=datetime.now(UTC) - _CLOCKS_APART,
    )
    newest: dict[tuple[str, str], tuple[datetime, float]] = {}
    for entry in entries:
        where, reading = (
            (entry["InstanceType"], entry["AvailabilityZone"]),
            (entry["Timestamp"], float(entry["SpotPrice"])),
        )
        newest[where] = max(newest.get(where, reading), reading)
    return {where: price for where, (_, price) in newest.items()}
