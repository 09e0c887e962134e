"""Why Compute Engine created no machine, by its code and its words. Pure.

The words are those by which cluster-autoscaler's GCE client tells failed launches apart (kubernetes/autoscaler,
cluster-autoscaler/cloudprovider/gce/autoscaling_gce_client.go, GetErrorInfo and regexReservationErrors, and its
TestErrors). A reservation's failures come with CONDITION_NOT_MET as those of an organization policy do: only the words
say whether they pass.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_gpu_provider.clouds.base import FailureKind

_OUT_OF_STOCK = re.compile(
    r"STOCKOUT|RESOURCE_POOL_EXHAUSTED|INSUFFICIENT_CAPACITY|insufficientCapacity|requestExceedsCapacity"
    r"|resource_availability|[Ii]nsufficient capacity|[Nn]ot enough (?:available )?capacity"
    r"|does not (?:currently )?have (?:any |enough |sufficient |available )+(?:resources|capacity)"
    r"|is currently unavailable in the \S+ zone"
)
_RESERVATION_IS_FULL = re.compile(
    r"RESERVATION_CAPACITY_EXCEEDED|RESERVATION_NOT_READY"
    r"|reservation\b.* to be in (?:the )?READY"
    r"|reservations?\b.*\b(?:is insufficient|short of \d|not enough|does not have enough)\b"
    r"|reservations?\b.*\b(?:fully (?:consumed|used|utilized)|exhausted|in use|no (?:more |remaining |available )\w+)"
    r"|\bno (?:more |remaining |available )\w+ in .*reservation",
    re.IGNORECASE,
)
_RESERVATION_IS_WRONG = re.compile(
    r"RESERVATION_NOT_FOUND|RESERVATION_INCOMPATIBLE|INVALID_RESERVATION"
    r"|reservations?\b.*\b(?:not exist|not found|incorrect for|incompatible|must exist|must be shared|not supported)"
    r"|(?:could not find|no automatic|must use|please target an?|incompatible|compatible with|not supported for)\b"
    r".*reservation",
    re.IGNORECASE,
)
# GKE passes on what Compute Engine says of what a node pool names: xpk#476, cluster-toolkit#5043, gsutil#1000.
_IS_NOT_THERE = re.compile(
    r"^Google Compute Engine: .*\b(?:not found|not exist)\b|\breservation\b.*\b(?:not found|not exist)\b", re.IGNORECASE
)
_REFUSED = ("PERMISSIONS_ERROR", "CONDITION_NOT_MET", "VM_EXTERNAL_IP_ACCESS_POLICY_CONSTRAINT")
"""Codes of launches that end the same in each zone until something changes; cluster-autoscaler's GCE client
names them, and tells them from IP_SPACE_EXHAUSTED, which other machines' end may cure."""


def is_out_of_stock(text: str) -> bool:
    """Return True if Google Cloud's words mean that it has no such machine there now.

    A reservation whose machines are all in use, or that is not READY, has none now either.
    """
    return _OUT_OF_STOCK.search(text) is not None or _RESERVATION_IS_FULL.search(text) is not None


def names_nothing(message: str) -> bool:
    """Return True if Google Cloud's words mean that what a node pool's spec names does not exist, a reservation say."""
    return _IS_NOT_THERE.search(message) is not None


def of_reservation(message: str) -> bool:
    """Return True if words for a stock-out are about a reservation alone."""
    return _RESERVATION_IS_FULL.search(message) is not None


def kind_of(code: str, message: str, *, over_quota: bool) -> FailureKind:
    """Return what a failed launch means for the next one.

    Args:
        code: Of the error, such as "CONDITION_NOT_MET".
        message: Its words.
        over_quota: Whether they mean a quota.
    """
    text = f"{code} {message}"
    if is_out_of_stock(text):
        return "out_of_stock"
    if over_quota:
        return "quota"
    if code.startswith(_REFUSED) or _RESERVATION_IS_WRONG.search(text):
        return "refused"
    return "other"
