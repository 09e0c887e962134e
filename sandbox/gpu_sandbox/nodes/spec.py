"""What the sandbox hands to the agent: nodes and images, as plain data that crosses a pipe as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol


class TaintLike(Protocol):
    """Anything with a taint's three fields, whoever's class it is."""

    @property
    def key(self) -> str: ...
    @property
    def value(self) -> str: ...
    @property
    def effect(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class Taint:
    """A node taint in Kubernetes' spelling (``NoSchedule``, ``PreferNoSchedule``, ``NoExecute``)."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


@dataclass(frozen=True, kw_only=True)
class NodeSpec:
    """A machine that joins the cluster as a Node.

    ``device_plugin_builtin`` is for machines whose image carries NVIDIA's device plugin (Bottlerocket): their
    GPUs are allocatable without a plugin pod. ``driver_seconds`` is how long after the Node NVIDIA's driver is there;
    None means never, until a container of an image of kind ``driver`` installs it on the node.
    ``disk_bytes`` is the size of the filesystem for images and pods.
    ``efa_interfaces`` are handed out as vpc.amazonaws.com/efa while a container of an image of kind ``efa-plugin`` runs
    on the node; with any, the driver has set huge pages aside.
    ``nvidia_is_apart``: NVIDIA's programs and libraries are mounted at /usr/local/nvidia and no variable is set, as by
    GKE's device plugin; otherwise nvidia-smi is in every container's PATH, as by NVIDIA's container toolkit.
    ``one_gpu_only`` is what the device plugin says to a container that asks for several GPUs; empty: it gives them.
    ``image_bytes_per_second`` is how much of images it takes in a second, as registries count bytes; 0: any amount.
    ``container_log_max_size`` is in bytes, with the kubelet's default: a log that has grown to it is rotated, and what
    was written before is served no more.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[TaintLike] = ()
    provider_id: str = ""
    cpus: int = 4
    memory_bytes: int = 16 * 2**30
    disk_bytes: int = 80 * 2**30
    efa_interfaces: int = 0
    gpus: int = 0
    gpu_product: str = "NVIDIA-L4"
    gpu_memory_mib: int = 23034
    nvidia_is_apart: bool = False
    one_gpu_only: str = ""
    device_plugin_builtin: bool = False
    driver_seconds: float | None = 0.0
    kubernetes_version: str = "v1.36.3"
    os_image: str = "Process node (gpu-sandbox)"
    image_bytes_per_second: float = 0.0
    container_log_max_size: int = 10 * 2**20

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON types."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        taints = [{"key": t.key, "value": t.value or "", "effect": t.effect} for t in self.taints]
        return fields | {"labels": dict(self.labels), "taints": taints}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> NodeSpec:
        """The inverse of to_json."""
        return cls(**{**data, "taints": tuple(Taint(**t) for t in data["taints"])})


@dataclass(frozen=True, kw_only=True)
class Image:
    """What a container image reference stands for on this machine.

    ``pattern`` is an fnmatch pattern on the reference (``python:*``); the registry ``docker.io/library`` may be
    left out on either side. ``folder`` is mounted read-only at /app, which becomes the working directory;
    ``path_prefix`` is a folder put first in PATH; ``pull_seconds`` is how long the first pull on a node takes,
    whatever node that is; ``size``, in bytes, is how large the image is in its registry: on a node that has a limit its
    first pull takes as long as that says.
    """

    pattern: str
    kind: Literal["host", "device-plugin", "driver", "efa-plugin"] = "host"
    folder: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    path_prefix: str = ""
    default_command: Sequence[str] = ()
    pull_seconds: float = 0.0
    size: int = 0

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON types."""
        folder = None if self.folder is None else str(self.folder)
        command = list(self.default_command)
        return asdict(self) | {"folder": folder, "env": dict(self.env), "default_command": command}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Image:
        """The inverse of to_json."""
        folder = None if data["folder"] is None else Path(data["folder"])
        return cls(**{**data, "folder": folder, "default_command": tuple(data["default_command"])})
