"""EC2's words for launches that it refuses otherwise than for capacity, by its error codes.

Auto Scaling's activities repeat them, and Karpenter has words of its own for some. The texts are those of public
issues: PrairieLearn#3271, terraform-aws-eks#1843 and #2355, karpenter-provider-aws#3217, #5283 and #7998, kops#16475,
eksctl#1022.
"""

from __future__ import annotations

WORDS = {
    "AuthFailure.ServiceLinkedRoleCreationNotPermitted": (
        "The provided credentials do not have permission to create the service-linked role for EC2 Spot Instances."
    ),
    "Blocked": "Your account is currently blocked. Contact aws-verification@amazon.com if you have questions.",
    "InsufficientFreeAddressesInSubnet": (
        "There are not enough free addresses in subnet '{subnet}' to satisfy the requested number of instances."
    ),
    "InvalidBlockDeviceMapping": "Volume of size 20GB is smaller than snapshot 'snap-0554', expect size>= 50GB.",
    "OptInRequired": "In order to use this AWS Marketplace product you need to accept terms and subscribe.",
    "PendingVerification": (
        "Your request for accessing resources in this region is being validated, and you will not be able to launch "
        "additional resources in this region until the validation is complete."
    ),
    "UnauthorizedOperation": "You are not authorized to perform this operation.",
    "Unsupported": (
        "The requested configuration is currently not supported. Please check the documentation for supported "
        "configurations."
    ),
}


def words_of(code: str, *, subnet: str = "") -> str:
    """What EC2 writes beside a code; a sentence of the sandbox's own for one that is not listed."""
    return WORDS.get(code, "The launch failed.").format(subnet=subnet)
