"""Karpenter in one cluster: its resources, its process, and the cloud that it launches machines in."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from gpu_sandbox.build import GoModule, GoProgram, binary_of
from gpu_sandbox.control_plane import STOP_TIMEOUT, ControlPlane
from gpu_sandbox.engines.installation import Installation
from gpu_sandbox.engines.manifests import released
from gpu_sandbox.karpenter.cloud import MachineCloud
from gpu_sandbox.nodes import NodeAgent
from gpu_sandbox.processes import ComponentProcess, stop_together

_START_SECONDS = 120.0

MODULE = GoModule(
    path="sigs.k8s.io/karpenter", version="v1.14.1", sum="h1:GjqvOHLjl2+OXM0ti5VEZSQuvcitB0pETd8zdChXEtI="
)
PROGRAM = GoProgram(
    name="karpenter",
    module=Path(__file__).parent,
    title="Karpenter",
    takes="two and a half minutes",
    packages=570,
)
_CRDS = ("pkg/apis/crds/karpenter.sh_*.yaml", "kwok/apis/crds/*.yaml")
# Of its defaults only the batch's times are changed: it remembers for twice the longest, and at least for ten seconds,
# which node it has nominated for a pod, and does not touch it until then.
_FLAGS = ("--batch-idle-duration=200ms", "--batch-max-duration=1s", "--log-level=debug")


def compile_karpenter(progress: Callable[[str], None]) -> Path:
    """The binary: minutes, where it is not in the cache. Raises GoMissing or BuildFailed."""
    return binary_of(PROGRAM, progress)


class Karpenter:
    """The real Karpenter at work in a sandbox's cluster, which has none; a context manager.

    Args:
        control_plane: The cluster's.
        agent: What brings the nodes.
        data_dir: For its files and its log.
        zones: Where machines are to be had.
        progress: Gets a line now and then when it has to be compiled.
    """

    def __init__(
        self,
        *,
        control_plane: ControlPlane,
        agent: NodeAgent,
        data_dir: Path,
        zones: Sequence[str],
        progress: Callable[[str], None] = print,
    ) -> None:
        self.cloud = MachineCloud(agent, control_plane, zones=zones)
        self._control_plane = control_plane
        self._data_dir = data_dir
        self._progress = progress
        self._process: ComponentProcess | None = None

    def __enter__(self) -> Karpenter:
        binary = compile_karpenter(self._progress)
        self._data_dir.mkdir(parents=True, exist_ok=True)
        Installation(self._control_plane, time.monotonic() + _START_SECONDS).resources(
            released("karpenter", MODULE, _CRDS)
        )
        types = self._data_dir / "instance-types.json"
        types.write_text(json.dumps(self.cloud.types))
        self.cloud.start()
        kubeconfig = self._control_plane.administrator("karpenter", name="karpenter")
        self._process = ComponentProcess(
            argv=[
                str(binary),
                "karpenter",
                f"--kubeconfig={kubeconfig}",
                f"--cloud={self.cloud.url}",
                f"--instance-types-file-path={types}",
                *_FLAGS,
            ],
            cwd=self._data_dir,
            log_file=self.log,
        )
        self.resume()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pause()
        self.cloud.stop()

    @property
    def log(self) -> Path:
        return self._data_dir / "karpenter.log"

    def pause(self) -> None:
        """End its process; machines stay as they are."""
        assert self._process is not None
        stop_together([self._process], kill_after=STOP_TIMEOUT)

    def resume(self) -> None:
        """Start its process anew."""
        assert self._process is not None
        self._process.start()

    def check(self) -> None:
        """Raise ComponentFailed if its process has ended."""
        assert self._process is not None
        self._process.check()
