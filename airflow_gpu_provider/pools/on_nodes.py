"""What is on a pool's nodes: what they bring, what this package installs there, and what a pod gets of them. Data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PLUGIN_FOLDER = "/var/lib/kubelet/device-plugins"
"""Where device plugins register at the kubelet (Kubernetes, "Device Plugins")."""


@dataclass(frozen=True, kw_only=True)
class NodesToCome:
    """What a spec alone makes known of nodes that do not exist yet.

    Attributes:
        labels: Those of their labels that are known.
        driver: By whom NVIDIA's driver is installed: a clause.
        platform: The platform that brings the device plugin, like "GKE"; empty where none does.
        image_with_plugin: The node image that brings the device plugin, like "Bottlerocket"; empty where it does not.
    """

    labels: Mapping[str, str]
    driver: str = "the nodes' owner installs it; every node has allocatable GPUs"
    platform: str = ""
    image_with_plugin: str = ""


@dataclass(frozen=True, kw_only=True)
class NodeDaemon:
    """A program that a pool needs on its nodes beside NVIDIA's device plugin, and that this package installs.

    Attributes:
        name: Its label app.kubernetes.io/name; its DaemonSet's name begins with it.
        pod_spec: Its pods, but for what all such pods have: their nodes, tolerations and priority.
    """

    name: str
    pod_spec: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class FabricPlugin(NodeDaemon):
    """The device plugin that hands out the interfaces of a fabric: the network of machines that train together.

    Attributes:
        fabric: The fabric's name, like "EFA".
        resource: The extended resource by which pods ask for them.
        plugin, dra_driver: What the names or images of a DaemonSet have in them that hands them out already.
        without: What to do so that a DRA driver may hand them out instead: an imperative clause.
    """

    fabric: str
    resource: str
    plugin: str
    dra_driver: str
    without: str


@dataclass(frozen=True, kw_only=True)
class PodFabric:
    """What the base container of a gang's pod gets so that it trains over a fabric.

    Attributes:
        resources: Requests and limits, by resource.
        env: Variables, unless the user has set them.
    """

    resources: Mapping[str, str]
    env: Mapping[str, str] = field(default_factory=dict)
