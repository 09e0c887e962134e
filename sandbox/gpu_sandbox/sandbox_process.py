"""A sandbox in its own process: any number side by side, each ended with the process that started it."""

from __future__ import annotations

import secrets
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from gpu_sandbox import supervisor
from gpu_sandbox.clock import ClockName
from gpu_sandbox.engines import EngineName
from gpu_sandbox.managed_cluster import Platform
from gpu_sandbox.pace import PaceName

_STOP_TIMEOUT = 30.0
_ADVANCE_SECONDS = 600.0


class SandboxProcess:
    """One sandbox, driven through its control API; only one `Sandbox` can run per process.

    Args:
        platform: "eks" or "gke".
        cluster_name: The cluster's name.
        boot_seconds: From an instance's launch to its Node. Default: the pace's.
        autoscaler: As `Sandbox`'s.
        autoscaler_speed: How many times faster than cluster-autoscaler the stand-in is. Default: `speed`.
        clock, pace, speed, seed, stale: As `Sandbox`'s.
        engines: As `Sandbox`'s.
        images: Folder, mounted at /app, by pattern of image reference; run with this interpreter.
        progress: Gets an occasional line about the progress of the start.
    """

    def __init__(
        self,
        *,
        platform: Platform = "eks",
        cluster_name: str = "k8s-ml",
        boot_seconds: float | None = None,
        autoscaler: Literal["stand-in", "none"] = "stand-in",
        autoscaler_speed: float | None = None,
        clock: ClockName = "system",
        pace: PaceName | None = None,
        speed: float | None = None,
        seed: int = 0,
        stale: float | None = None,
        engines: Sequence[EngineName] = (),
        images: Mapping[str, Path] | None = None,
        progress: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.cluster_name = cluster_name
        self.name = f"process-{secrets.token_hex(4)}"
        self._progress = progress
        self._arguments = [
            f"--name={self.name}",
            f"--platform={platform}",
            f"--cluster-name={cluster_name}",
            f"--autoscaler={autoscaler}",
            f"--clock={clock}",
            f"--seed={seed}",
            *([] if pace is None else [f"--pace={pace}"]),
            *([] if speed is None else [f"--speed={speed}"]),
            *([] if stale is None else [f"--stale={stale}"]),
            *([] if boot_seconds is None else [f"--boot-seconds={boot_seconds}"]),
            *([] if autoscaler_speed is None else [f"--autoscaler-speed={autoscaler_speed}"]),
            *([f"--with={','.join(engines)}"] if engines else []),
            *(f"--image={pattern}={folder}" for pattern, folder in (images or {}).items()),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Return when it is ready. Raises ComponentFailed, with the log's end, if it exits instead."""
        with tempfile.NamedTemporaryFile(prefix="gpu-sandbox-", suffix=".log") as log:
            self._process = subprocess.Popen(
                [*supervisor.up_command(), "--until-stdin-closes", *self._arguments],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for this process, which then stops it.
                start_new_session=True,
            )
            try:
                supervisor.wait_until_ready(self.name, self._process, log_file=Path(log.name), progress=self._progress)
            except BaseException:
                self.stop()
                raise
        self._running = supervisor.find(self.name)

    def stop(self) -> None:
        """End it and all its processes; safe to call twice."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            supervisor.remove_leftovers(self.name)
        supervisor.forget(self.name)

    def __enter__(self) -> SandboxProcess:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def env(self) -> dict[str, str]:
        """As `Sandbox.env`."""
        env: dict[str, str] = self._running.api.call("GET", "/env")
        return env

    def describe(self) -> dict[str, Any]:
        """As `Sandbox.describe`."""
        described: dict[str, Any] = self._running.api.call("GET", "/status")
        return described

    def advance(self, seconds: float = 0.0, *, minutes: float = 0.0, hours: float = 0.0) -> None:
        """As `Sandbox.advance`. ControlApiError if the sandbox's time is the machine's."""
        whole = seconds + 60.0 * minutes + 3600.0 * hours
        self._running.api.call("POST", "/advance", {"seconds": whole}, may_take=_ADVANCE_SECONDS)

    def apply_faults(self, changes: Mapping[str, Any]) -> None:
        """As `Faults.apply`. ControlApiError says what is wrong with them."""
        self._running.api.call("POST", "/faults", dict(changes))

    def clear_faults(self) -> None:
        self._running.api.call("DELETE", "/faults")

    def interrupt_spot(self, **where: str) -> list[str]:
        """As `Sandbox.interrupt_spot`. ControlApiError if no such instance runs."""
        instances: list[str] = self._running.api.call("POST", "/interrupt-spot", where)["instances"]
        return instances

    def recommend_rebalance(self, **where: str) -> list[str]:
        """As `Sandbox.recommend_rebalance`. ControlApiError if no such instance runs."""
        instances: list[str] = self._running.api.call("POST", "/recommend-rebalance", where)["instances"]
        return instances

    def upgrade_nodes(self, group: str) -> bool:
        """As `Sandbox.upgrade_nodes`. ControlApiError if there is no such group."""
        return bool(self._running.api.call("POST", "/upgrade-nodes", {"group": group})["began"])

    def hang_apiserver(self, seconds: float) -> None:
        """As `Sandbox.hang_apiserver`."""
        self._running.api.call("POST", "/hang-apiserver", {"seconds": seconds}, may_take=seconds)

    def cut_connections(self) -> int:
        """As `Sandbox.cut_connections`."""
        return int(self._running.api.call("POST", "/cut-connections")["connections"])

    def restart_apiserver(self, down_seconds: float = 0.0) -> None:
        """As `Sandbox.restart_apiserver`."""
        self._running.api.call("POST", "/restart-apiserver", {"down_seconds": down_seconds}, may_take=down_seconds)
