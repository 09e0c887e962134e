"""What EC2's words about a failed launch mean, in Auto Scaling's activities and in Karpenter's claims. Pure.

The codes are those of the EC2 API reference, "Error codes"; texts without a code those of the Auto Scaling user guide,
"Troubleshoot: EC2 instance launch failures" and "AMI issues". A group with a mixed instances policy and Karpenter put
the code before the text, "Code - text" and "Code: text"; other groups have the text alone.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_gpu_provider.clouds.base import FailureKind

_OUT_OF_STOCK = re.compile(
    r"\bInsufficient\w*Capacity(?!Error)|\bReservationCapacityExceeded"
    r"|(?i:sufficient compatible and available capacity|no spot capacity available|do not have sufficient"
    r"|is not supported in your requested availability zone|availability zone (?:\S+ )?is no longer supported)"
)

# A limit of the account: another zone does not help against it, another market or type may.
_OVER_QUOTA = re.compile(
    r"\b(?!RequestLimit|UserDataSizeLimit)\w*(?:Limit|Quota|Count)Exceeded\b"
    r"|(?i:than your current (?:vcpu|instance) limit|spot instance count exceeded|your quota allows for)"
)

# Client errors: another try ends the same until a change of a permission, an image, a launch template or a key.
_REFUSED = re.compile(
    r"\bInvalid[A-Z]\w+|\bAuthFailure\b|\bUnauthorized(?:Operation)?\b|\bOptInRequired\b|\bBlocked(?: -|:)"
    r"|\bMissing(?:Parameter|Input)\b|\bUnknownParameter\b|\bUserDataSizeLimitExceeded\b|\bMarketplace\b"
    r"|\bClient\.InternalError: Client error on launch"  # mostly a KMS key that the launch may not use
    r"|(?i:not authorized (?:to|for)\b|does not exist|account is currently blocked"
    r"|does not match the architecture|is smaller than snapshot|you cannot specify|invalid device name"
    r"|for parameter \S+ is invalid|virtualization type|block device mappings not supported|may not be used with)"
)

# But these may be one zone's or a moment's affair: IAM takes a while to tell EC2 of a new instance profile, and a
# reservation begins.
_MAY_PASS = re.compile(
    r"\bInvalidFleetConfiguration\b|\bInvalid\w+\.InUse\b|(?i:instance ?profile\b)"
    r"|\bInvalid(?!\S*NotFound)\S*(?: -|:)? .{0,200}?(?i:capacity[- ]?(?:reservation|block))"
)

# It follows from another code in the same answer, or is the only one.
_UNFULFILLED = "UnfulfillableCapacity"


def failure_kind(message: str) -> FailureKind:
    """Return what EC2's words mean; see `LaunchFailure`. Of several zones' and types' the one that passes counts."""
    if _OUT_OF_STOCK.search(message):
        return "out_of_stock"
    if _OVER_QUOTA.search(message):
        return "quota"
    if _REFUSED.search(message) and not _MAY_PASS.search(message):
        return "refused"
    return "out_of_stock" if _UNFULFILLED in message else "other"
