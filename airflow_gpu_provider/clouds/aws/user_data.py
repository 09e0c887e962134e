"""The user data of a pool's nodes on EKS: what their images read at boot, judged before a node is made of it. Pure.

Amazon Linux 2023 reads nodeadm's NodeConfig ("API Reference" of nodeadm in awslabs/amazon-eks-ami), Bottlerocket its
settings in TOML (bottlerocket.dev, "Settings Reference"). EKS merges either with its own ("Customize managed nodes with
launch templates" of its user guide). nodeadm ignores a field or a feature gate that it does not know, and with one of
another type than its own the node never joins; Bottlerocket refuses what it does not know. User data may hold a
registry's password: no problem quotes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_gpu_provider.parse_errors import kind_of, parsed
from airflow_gpu_provider.pools.values import closest

UserData = Mapping[str, object] | str | None
API_VERSION = "node.eks.aws/v1alpha1"
MAX_BYTES = 16 * 1024
"""EC2's user guide, "Run commands when you launch an EC2 instance": before it is encoded."""

_BOUNDARY = "airflow-gpu-provider"
_TEXTS, _OBJECT, _TEXTS_BY_NAME = [str], dict, {str: {str: str}}
# nodeadm's NodeConfig of July 2026, but for spec.cluster, which EKS writes. A type, the possible values, or fields.
_NODE_CONFIG: Mapping[str, Any] = {
    "apiVersion": (API_VERSION,),
    "kind": ("NodeConfig",),
    "metadata": _OBJECT,
    "spec": {
        "containerd": {"config": str, "baseRuntimeSpec": _OBJECT},
        "featureGates": {"InstanceIdNodeName": bool, "FastImagePull": bool},
        "instance": {
            "environment": _TEXTS_BY_NAME,
            "localStorage": {
                "strategy": ("RAID0", "RAID10", "Mount"),
                "mountPath": str,
                "disabledMounts": [("Containerd", "PodLogs", "SOCI")],
            },
            "network": {"nameservers": _TEXTS, "domains": _TEXTS},
        },
        "kubelet": {"config": _OBJECT, "flags": _TEXTS, "maxPodsExpression": str},
    },
}
# Bottlerocket's groups of settings for Kubernetes, of release 1.50; what is in them is left to it.
_BOTTLEROCKET = {
    "settings": {
        **dict.fromkeys(
            (
                *("autoscaling", "aws", "boot", "bootstrap-commands", "bootstrap-containers", "cloudformation"),
                *("container-registry", "container-runtime", "container-runtime-plugins", "dns", "host-containers"),
                *("kernel", "kubelet-device-plugins", "kubernetes", "metrics", "motd", "network", "ntp"),
                *("nvidia-container-runtime", "oci-defaults", "oci-hooks", "pki", "updates"),
            ),
            object,
        ),
        "kubernetes": _OBJECT,
    }
}
_OF_THE_CLUSTER = ("api-server", "cluster-certificate", "cluster-name")


def problems(user_data: UserData, ami_type: str) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a pool's (rendered) user data, each with its fix."""
    try:
        yield from _problems(user_data, ami_type)
    except ValueError as error:
        yield f"user_data cannot be read: {error}", "Correct it; docs/node-images.md has an example."


def _problems(user_data: UserData, ami_type: str) -> Iterator[tuple[str, str]]:
    if ami_type.startswith("BOTTLEROCKET_"):
        if not isinstance(user_data, str):
            yield f"user_data: with ami_type {ami_type} it is Bottlerocket's settings", "Give them as a text in TOML."
            return
        settings, known = as_data(user_data, ami_type), "Bottlerocket's settings"
        yield from _unlike(settings, _BOTTLEROCKET, known)
        kubernetes = settings.get("settings", {}).get("kubernetes", {})
        of_eks = [f"settings.kubernetes.{name}" for name in _OF_THE_CLUSTER if name in kubernetes]
    elif ami_type.startswith("AL2023_"):
        config, known = as_data(user_data, ami_type), "nodeadm's NodeConfig"
        spec = config.get("spec") or {}
        of_eks = ["spec.cluster"] if isinstance(spec, Mapping) and "cluster" in spec else []
        others = {key: each for key, each in spec.items() if key != "cluster"} if isinstance(spec, Mapping) else spec
        yield from _unlike({**config, "spec": others}, _NODE_CONFIG, known)
        for name in ("apiVersion", "kind"):
            if name not in config:
                yield f"user_data: {known} has no {name}", f"Begin with apiVersion: {API_VERSION}, kind: NodeConfig."
    else:
        yield (
            f"user_data is for images of AL2023 and of Bottlerocket, and ami_type is {ami_type}",
            "Choose one of those, or put it into a launch_template of your own.",
        )
        return
    for name in of_eks:
        yield f"user_data sets {name}, which EKS does for the pool's cluster", "Leave it out."
    if (size := len(as_text(user_data, ami_type).encode())) > MAX_BYTES:
        yield f"user_data has {size} bytes, and EC2 takes {MAX_BYTES}", "Make it shorter."


def as_data(user_data: UserData, ami_type: str) -> Mapping[str, Any]:
    """Return user data as an object; raises ValueError where it is none."""
    if not isinstance(user_data, str):
        found = user_data
    elif ami_type.startswith("BOTTLEROCKET_"):
        import tomllib

        found = parsed(tomllib.loads, user_data)
    else:
        import yaml

        found = parsed(yaml.safe_load, user_data)
    if not isinstance(found, Mapping):
        raise ValueError("it is not an object with fields")
    return found


def as_text(user_data: UserData, ami_type: str) -> str:
    """Return valid user data as the image reads it."""
    if ami_type.startswith("BOTTLEROCKET_"):
        return str(user_data)
    config = json.dumps(as_data(user_data, ami_type), sort_keys=True)
    return "\n".join(
        (
            "MIME-Version: 1.0",
            f'Content-Type: multipart/mixed; boundary="{_BOUNDARY}"',
            "",
            f"--{_BOUNDARY}",
            "Content-Type: application/node.eks.aws",
            "",
            config,
            f"--{_BOUNDARY}--",
            "",
        )
    )


def from_text(text: str) -> Mapping[str, object]:
    """Return what `as_text` wrote as an object; raises ValueError for what others wrote otherwise."""
    if text.startswith("MIME-Version"):
        found = parsed(json.loads, text.partition("application/node.eks.aws\n\n")[2].partition(f"\n--{_BOUNDARY}")[0])
        if not isinstance(found, Mapping):
            raise ValueError("it is no object")
        return found
    return as_data(text, "BOTTLEROCKET_")


def _unlike(value: Any, wanted: Any, known: str, at: str = "") -> Iterator[tuple[str, str]]:
    """Yield where a value is not as wanted: a type, one of a tuple's values, a list's each, or an object's fields."""
    where = at or "it"
    if isinstance(wanted, tuple):
        if value not in wanted:
            yield f"user_data: {where} has a value that it cannot have", f"Choose {' or '.join(wanted)}."
    elif isinstance(wanted, type):
        if not isinstance(value, wanted) or (wanted is not bool and isinstance(value, bool) and wanted is not object):
            yield f"user_data: {where} is {kind_of(value)}, not {kind_of(wanted())}", "Correct it."
    elif isinstance(wanted, list):
        if not isinstance(value, list | tuple):
            yield f"user_data: {where} is {kind_of(value)}, not a list", "Correct it."
            return
        for number, each in enumerate(value):
            yield from _unlike(each, wanted[0], known, f"{where}[{number}]")
    elif not isinstance(value, Mapping):
        yield f"user_data: {where} is {kind_of(value)}, not an object", "Correct it."
    else:
        yield from _unlike_fields(value, wanted, known, at)


def _unlike_fields(value: Mapping[str, Any], wanted: Any, known: str, at: str) -> Iterator[tuple[str, str]]:
    for key, each in value.items():
        path = f"{at}.{key}".lstrip(".")
        if key in wanted or str in wanted:
            yield from _unlike(each, wanted.get(key, wanted.get(str)), known, path)
            continue
        close = closest(str(key), map(str, wanted))
        names = f"Write {close}." if close else f"Known are {', '.join(sorted(wanted))}."
        yield f"user_data: {known} has no {path}", f"{names} A newer field: by a launch_template of your own."
