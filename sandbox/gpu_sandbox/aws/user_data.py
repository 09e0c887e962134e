"""What EKS and a node's image make of user data: what is refused, and what no node boots with.

nodeadm, which Amazon Linux 2023 boots with, ignores fields and feature gates that it does not know, and ends where one
has another type than its own (awslabs/amazon-eks-ami: nodeadm/internal/api/bridge decodes without strictness, and
internal/api/featuregates looks known gates up). Bottlerocket refuses settings that it does not know.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from email import message_from_string
from typing import Any

import yaml
from moto.core.types import Base64EncodedString

_NODE_CONFIG = "application/node.eks.aws"
_STRATEGIES = ("RAID0", "RAID10", "Mount")
# Bottlerocket's groups of settings for Kubernetes: "Settings Reference" of release 1.50.
_SETTINGS = frozenset(
    {
        *("autoscaling", "aws", "boot", "bootstrap-commands", "bootstrap-containers", "cloudformation"),
        *("container-registry", "container-runtime", "container-runtime-plugins", "dns", "host-containers", "kernel"),
        *("kubelet-device-plugins", "kubernetes", "metrics", "motd", "network", "ntp", "nvidia-container-runtime"),
        *("oci-defaults", "oci-hooks", "pki", "updates"),
    }
)


def text_of(user_data: Base64EncodedString | str | None) -> str:
    """User data as a machine reads it; empty where there is none."""
    if not user_data:
        return ""
    return Base64EncodedString(str(user_data)).decode() if isinstance(user_data, str) else user_data.decode()


def refusal(text: str, ami_type: str) -> str:
    """Why EKS makes no group of it, in its words; empty where it does.

    hashicorp/learn-terraform-provision-eks-cluster#79 has those of TOML, terraform-aws-modules/terraform-aws-eks#1770
    those of MIME; with an AMI of the user's own EKS leaves the user data alone.
    """
    if not text or ami_type == "CUSTOM":
        return ""
    if ami_type.startswith("BOTTLEROCKET"):
        return "" if _settings(text) is not None else "User data was not a TOML format that could be processed."
    is_multipart = message_from_string(text).get_content_maintype() == "multipart"
    return "" if is_multipart else "User data was not in the MIME multipart format."


def boots(text: str, ami_type: str) -> bool:
    """Whether a node with this user data joins its cluster."""
    if not text:
        return True
    if ami_type.startswith("BOTTLEROCKET"):
        found = _settings(text)
        return found is not None and found.keys() <= {"settings"} and found.get("settings", {}).keys() <= _SETTINGS
    try:
        return not ami_type.startswith("AL2023") or all(map(_is_node_config, node_configs(text)))
    except yaml.YAMLError:
        return False


def node_configs(text: str) -> Iterator[Mapping[str, Any]]:
    """nodeadm's configurations in user data."""
    for part in message_from_string(text).walk():
        if part.get_content_type() == _NODE_CONFIG:
            yield yaml.safe_load(str(part.get_payload())) or {}


def _settings(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def _is_node_config(config: Any) -> bool:
    if not isinstance(config, Mapping) or config.get("apiVersion") != "node.eks.aws/v1alpha1":
        return False
    spec = config.get("spec") or {}
    kubelet, storage = spec.get("kubelet") or {}, (spec.get("instance") or {}).get("localStorage") or {}
    gates, flags = spec.get("featureGates") or {}, kubelet.get("flags") or []
    return (
        storage.get("strategy") in (None, *_STRATEGIES)
        and isinstance(gates, Mapping)
        and all(isinstance(each, bool) for each in gates.values())
        and isinstance(flags, list)
        and all(isinstance(each, str) for each in flags)
    )
