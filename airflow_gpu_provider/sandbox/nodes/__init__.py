"""Process nodes: Kubernetes Nodes without a machine, whose pods are local processes in namespaces of their own.

One agent process keeps them all. NodeAgent is the handle on it; everything else lives in that process and speaks only
to the Kubernetes API. Nothing here knows of AWS, nor of the rest of the package.
"""

from __future__ import annotations

from airflow_gpu_provider.sandbox.nodes.errors import NamespacesForbidden, NodeAgentError
from airflow_gpu_provider.sandbox.nodes.handle import NodeAgent
from airflow_gpu_provider.sandbox.nodes.spec import Image, NodeSpec, Taint

__all__ = ["Image", "NamespacesForbidden", "NodeAgent", "NodeAgentError", "NodeSpec", "Taint"]
