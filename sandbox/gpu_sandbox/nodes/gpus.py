"""The GPUs of a node: simulated ones, or this machine's own, and which container holds which."""

from __future__ import annotations

import shutil
import subprocess
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_sandbox.nodes.spec import NodeSpec

RESOURCE = "nvidia.com/gpu"
_NAMESPACE = uuid.UUID("b4f5c1de-1d0a-4b0c-9d53-4f0a6a4f1c5e")


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU; ``index`` is its number on the node, or on this machine for a real one."""

    index: int
    uuid: str
    name: str
    memory_mib: int
    real: bool = False

    @property
    def cuda_name(self) -> str:
        """What CUDA_VISIBLE_DEVICES calls it. A real one goes by its UUID: its number changes with what is visible."""
        return self.uuid if self.real else str(self.index)

    def to_json(self) -> dict[str, Any]:
        """As the simulated nvidia-smi reads it."""
        return {"index": self.index, "uuid": self.uuid, "name": self.name, "memory_mib": self.memory_mib}


def of_this_machine() -> list[Gpu]:
    """The machine's real GPUs, none where it has no NVIDIA driver."""
    program = shutil.which("nvidia-smi")
    if program is None or not Path("/dev/nvidia0").exists():
        return []
    query = "--query-gpu=index,uuid,name,memory.total"
    answer = subprocess.run(
        [program, query, "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=60
    )
    rows = [line.split(", ") for line in answer.stdout.splitlines() if answer.returncode == 0]
    return [Gpu(index=int(i), uuid=u, name=n, memory_mib=int(m), real=True) for i, u, n, m in rows]


def of_node(spec: NodeSpec, real: Sequence[Gpu]) -> list[Gpu]:
    """The GPUs of a node: this machine's, shared between nodes in turn, or simulated ones of the node's kind."""
    if real:
        return [real[i % len(real)] for i in range(spec.gpus)]
    # Product labels have dashes for what nvidia-smi prints with blanks: NVIDIA-L4 is "NVIDIA L4".
    name = spec.gpu_product.replace("-", " ")
    return [
        Gpu(
            index=i,
            uuid=f"GPU-{uuid.uuid5(_NAMESPACE, f'{spec.name}/{i}')}",
            name=name,
            memory_mib=spec.gpu_memory_mib,
        )
        for i in range(spec.gpus)
    ]


def devices(chosen: Sequence[Gpu]) -> list[str]:
    """The device files that a container with these real GPUs needs: theirs, and the driver's own."""
    own = {f"nvidia{gpu.index}" for gpu in chosen}
    files = [path for path in sorted(Path("/dev").glob("nvidia*")) if path.is_char_device()]
    return [str(path) for path in files if path.name in own or not path.name.removeprefix("nvidia").isdigit()]


def visible(gpus: Sequence[Gpu], wanted: str) -> list[Gpu]:
    """What NVIDIA_VISIBLE_DEVICES means on a node with these GPUs: ``all``, or UUIDs or indices; else none."""
    if wanted == "all":
        return list(gpus)
    named = wanted.split(",")
    return [gpu for i, gpu in enumerate(gpus) if gpu.uuid in named or str(i) in named]


class AllocationError(Exception):
    """More GPUs were asked for than are free, or than the plugin gives; the text is the device plugin manager's."""


@dataclass
class Inventory:
    """Which of a node's GPUs (by their place on it) are held by which containers of which pod."""

    gpus: Sequence[Gpu]
    one_gpu_only: str = ""
    """What the device plugin says to a container that asks for several; empty: it gives them."""
    _holders: dict[int, tuple[str, list[str]]] = field(default_factory=dict)

    def share(self, pod_uid: str, container: str, count: int) -> int:
        """Let an init container use what other containers of its pod hold; returns how many it lacks still."""
        own = [names for uid, names in self._holders.values() if uid == pod_uid][:count]
        for names in own:
            names.append(container)
        return count - len(own)

    def allocate(self, pod_uid: str, container: str, count: int, *, healthy: bool) -> None:
        """Give count GPUs to a container. Raises AllocationError when that many are not free and healthy, or given."""
        free = [slot for slot in range(len(self.gpus)) if slot not in self._holders] if healthy else []
        if len(free) < count:
            raise AllocationError(
                f"Allocate failed due to requested number of devices unavailable for {RESOURCE}. "
                f"Requested: {count}, Available: {len(free)}, which is unexpected"
            )
        if count > 1 and self.one_gpu_only:
            refusal = f"rpc error: code = Unknown desc = {self.one_gpu_only}"
            raise AllocationError(f"Allocate failed due to {refusal}, which is unexpected")
        for slot in free[:count]:
            self._holders[slot] = (pod_uid, [container])

    def held_by(self, pod_uid: str, container: str) -> list[Gpu]:
        """The GPUs that a container holds."""
        slots = [slot for slot, (uid, names) in self._holders.items() if uid == pod_uid and container in names]
        return [self.gpus[slot] for slot in sorted(slots)]

    def release(self, pod_uid: str) -> None:
        """Take back all that a pod holds."""
        self._holders = {slot: who for slot, who in self._holders.items() if who[0] != pod_uid}
