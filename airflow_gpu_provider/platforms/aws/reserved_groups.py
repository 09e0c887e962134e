"""What a node group of this package's says of the reservation that it is of. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_gpu_provider.pools.candidates import Market

RESERVATION_TAG = "airflow-gpu-provider/reservation"
"""Of which reservation a group is, and the type of its machines: "cr-0a1b2c3d p5.48xlarge"."""


def types_of(group: Mapping[str, Any]) -> list[str]:
    """Return the machine types of a group of ours; those of a Capacity Block's are in its template, and its tag."""
    _, _, reserved = group.get("tags", {}).get(RESERVATION_TAG, "").partition(" ")
    return list(group.get("instanceTypes") or filter(None, [reserved]))


def reservation_of(group: Mapping[str, Any]) -> str:
    """Return of which reservation a group of ours is; empty for none."""
    return str(group.get("tags", {}).get(RESERVATION_TAG, "").partition(" ")[0])


def market_of(group: Mapping[str, Any]) -> Market:
    """Return the market of a group of ours."""
    found: Market = group.get("capacityType") or "ON_DEMAND"
    return "RESERVED" if found == "ON_DEMAND" and reservation_of(group) else found
