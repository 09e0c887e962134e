"""How a GKE pool's machines are obtained besides on demand: from a reservation, or by flex-start. Rules, no I/O.

The rules are those of GKE's API (container v1: NodeConfig.reservation_affinity, flex_start, shielded_instance_config)
and of its pages "Consume reserved zonal resources" and "About flex-start provisioning".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

LONGEST_FLEX_START = timedelta(days=7)
RESERVED_ONLY = ("SPECIFIC_RESERVATION", "ANY_RESERVATION_THEN_FAIL")
"""The values of ReservationAffinity.Type with which machines come only from a reservation."""

_TYPES = ("NO_RESERVATION", "ANY_RESERVATION", *RESERVED_ONLY)
_AFFINITY = ("consume_reservation_type", "key", "values")
_SHIELDED = ("enable_secure_boot", "enable_integrity_monitoring")


def reservation_problems(affinity: Mapping[str, Any], capacity_types: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a pool's reservation_affinity, and what to do about it."""
    if not affinity:
        return
    kind = affinity.get("consume_reservation_type")
    named = bool(affinity.get("key")) and bool(affinity.get("values"))
    if not set(affinity) <= set(_AFFINITY) or kind not in _TYPES:
        yield f"reservation_affinity={affinity!r}", f"Give consume_reservation_type, one of {', '.join(_TYPES)}."
    elif kind == "SPECIFIC_RESERVATION" and not named:
        example = '"key": "compute.googleapis.com/reservation-name", "values": ["my-reservation"]'
        yield "reservation_affinity names no reservation", f"Add {example}."
    elif kind != "SPECIFIC_RESERVATION" and len(affinity) > 1:
        yield f"reservation_affinity: {kind} takes neither key nor values", "Leave them out."
    elif kind in RESERVED_ONLY and set(capacity_types) != {"ON_DEMAND"}:
        yield "spot and preemptible machines cannot use a reservation", 'Set capacity_types=["ON_DEMAND"].'


def shielded_problems(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a pool's shielded_instance_config, and what to do about it."""
    if not set(config) <= set(_SHIELDED) or not all(isinstance(value, bool) for value in config.values()):
        yield f"shielded_instance_config={dict(config)!r}", f"Give True or False for {' and '.join(_SHIELDED)}."


def flex_start_problems(
    *,
    capacity_types: Sequence[str],
    scaling: str,
    location_policy: str,
    affinity: Mapping[str, Any],
    lifetime: timedelta | None,
) -> Iterator[tuple[str, str]]:
    """Yield what does not work with flex-start in a pool, and what to do about it. `lifetime`: None is unlimited."""
    if set(capacity_types) != {"ON_DEMAND"}:
        yield "flex-start machines are neither spot nor preemptible", 'Set capacity_types=["ON_DEMAND"].'
    if scaling != "autoscaler":
        yield "only GKE's autoscaler requests flex-start machines", 'Set scaling="autoscaler".'
    if location_policy != "any":
        yield 'flex_start needs location_policy="any"', "Leave location_policy out."
    if affinity.get("consume_reservation_type", "NO_RESERVATION") != "NO_RESERVATION":
        yield (
            "flex-start machines cannot use a reservation",
            "Leave one of flex_start and reservation_affinity out.",
        )
    if lifetime is None or lifetime > LONGEST_FLEX_START:
        yield (
            f"flex-start machines live for at most {LONGEST_FLEX_START.days} days",
            "Lower max_run_duration or max_runtime, and leave min_nodes out.",
        )
