"""What all pods of an agent share: the API, the launcher, known images, this machine's GPUs and paths."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_sandbox.nodes import nvidia_smi
from gpu_sandbox.nodes.api import Api
from gpu_sandbox.nodes.cluster_names import ClusterNames
from gpu_sandbox.nodes.errors import ApiError
from gpu_sandbox.nodes.events import Events
from gpu_sandbox.nodes.gpus import Gpu
from gpu_sandbox.nodes.launcher import Launcher
from gpu_sandbox.nodes.memory import MemoryWatch
from gpu_sandbox.nodes.spec import Image

# Folders of which every container has its own, empty one.
_HIDDEN = (Path("/tmp"), Path("/run"), Path("/var/run"))
_GPU_USES = "use.json"
# As nvidia-smi does where the loader finds no libnvidia-ml.so.
_NEEDS_ITS_LIBRARY = """case ":$LD_LIBRARY_PATH:" in *:/usr/local/nvidia/lib64:*) ;; *)
echo "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the NVIDIA Display Driver \
is properly installed and present in your system."; exit 12 ;; esac
"""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The agent's shared means."""

    api: Api
    events: Events
    launcher: Launcher
    memory: MemoryWatch
    names: ClusterNames
    images: Sequence[Image]
    real_gpus: Sequence[Gpu]
    work_dir: Path

    @property
    def staging(self) -> Path:
        """An empty folder on which each container, in its own mount namespace, builds its root."""
        return self.work_dir / "staging"

    def smi_folder(self, *, apart: bool) -> Path:
        """The folder with the simulated nvidia-smi; apart from its library, it has to be told where that is."""
        return self.work_dir / "nvidia" / ("apart" if apart else "bin")

    def prepare(self) -> None:
        """Make the folders that containers need."""
        self.staging.mkdir(parents=True, exist_ok=True)
        files = f'/usr/local/nvidia/gpus.json "${{0%/*}}/{_GPU_USES}"'
        program = f'exec {sys.executable} -I -S {nvidia_smi.__file__} {files} "$@"'
        for apart, first in ((False, ""), (True, _NEEDS_ITS_LIBRARY)):
            script = self.smi_folder(apart=apart) / "nvidia-smi"
            script.parent.mkdir(parents=True, exist_ok=True)
            script.write_text(f"#!/bin/sh\n{first}{program}\n")
            script.chmod(0o755)

    def show_gpu_uses(self, uses: Sequence[Mapping[str, Any]]) -> None:
        """Have the simulated nvidia-smi of every container show these from now on."""
        for apart in (False, True):
            written = self.smi_folder(apart=apart) / f"{_GPU_USES}.new"
            written.write_text(json.dumps(uses))
            written.replace(written.with_suffix(""))

    async def lookup(self, namespace: str, kind: str, name: str) -> Mapping[str, bytes] | None:
        """The data of a ConfigMap or Secret (kind in lower case), None when it does not exist."""
        try:
            body = await self.api.get(f"/api/v1/namespaces/{namespace}/{kind}s/{name}")
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        if kind == "secret":
            return {k: base64.b64decode(v) for k, v in (body.get("data") or {}).items()}
        binary = {k: base64.b64decode(v) for k, v in (body.get("binaryData") or {}).items()}
        return {k: v.encode() for k, v in (body.get("data") or {}).items()} | binary

    async def persistent_volume(self, namespace: str, claim: str) -> Mapping[str, Any] | None:
        """The PersistentVolume that a claim is bound to, None when it is not bound."""
        try:
            body = await self.api.get(f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{claim}")
            name = body["spec"].get("volumeName")
            return await self.api.get(f"/api/v1/persistentvolumes/{name}") if name else None
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def token(self, pod: Mapping[str, Any], source: Mapping[str, Any]) -> str:
        """A service-account token bound to the pod."""
        metadata = pod["metadata"]
        account = pod["spec"].get("serviceAccountName") or "default"
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {
                "audiences": [source["audience"]] if source.get("audience") else [],
                "expirationSeconds": source.get("expirationSeconds") or 3600,
                "boundObjectRef": {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                },
            },
        }
        path = f"/api/v1/namespaces/{metadata['namespace']}/serviceaccounts/{account}/token"
        answer = await self.api.create(path, request)
        return str(answer["status"]["token"])

    def kept_paths(self, image: Image) -> list[str]:
        """Paths that a container needs though its /tmp and /run are its own: interpreters and their packages."""
        wanted = [Path(sys.prefix), Path(sys.base_prefix), Path(nvidia_smi.__file__).parent]
        if image.path_prefix:
            folder = Path(image.path_prefix)
            wanted += [folder.parent, *_interpreter_homes(folder)]
        return sorted({str(path) for path in wanted if any(path.is_relative_to(h) for h in _HIDDEN)})


def _interpreter_homes(folder: Path) -> list[Path]:
    python = folder / "python"
    return [python.resolve().parent.parent] if python.exists() else []
