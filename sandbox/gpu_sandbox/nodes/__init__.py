"""Process nodes: Kubernetes Nodes without a machine, whose pods are local processes in namespaces of their own.

One agent process keeps them all. NodeAgent is the handle on it; everything else lives in that process and speaks only
to the Kubernetes API. Nothing here knows of AWS, nor of the rest of the package.

Unlike a kubelet's, these pods share the machine's network and (unless its user is root) one user; CPU limits are not
enforced; memory limits are, by a watch of /proc; a container's own layer is in memory; ConfigMaps, Secrets and tokens
are not refreshed once mounted; there is no attach, port-forward, SPDY, ephemeral container or eviction for disk.
"""

from __future__ import annotations

from gpu_sandbox.nodes.errors import NamespacesForbidden, NodeAgentError
from gpu_sandbox.nodes.handle import NodeAgent
from gpu_sandbox.nodes.spec import Image, NodeSpec, Taint

__all__ = ["Image", "NamespacesForbidden", "NodeAgent", "NodeAgentError", "NodeSpec", "Taint"]
