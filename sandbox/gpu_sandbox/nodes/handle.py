"""The sandbox's handle on the node agent's process."""

from __future__ import annotations

import itertools
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import gpu_sandbox
from gpu_sandbox.nodes.errors import NamespacesForbidden, NodeAgentError
from gpu_sandbox.nodes.spec import Image, NodeSpec

START_SECONDS = 120.0
REQUEST_SECONDS = 150.0
STOP_SECONDS = 10.0
_KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV")


class NodeAgent:
    """One process that keeps any number of Nodes; its methods may be called from any thread.

    ``work_dir`` is for its files alone. Its log and exec port serves only callers with a certificate of the authority
    that the kubeconfig names, as the API server presents (``--kubelet-client-certificate``). With ``pulls_by_hand``
    pulls of images whose size is known go on by `live`.
    """

    def __init__(
        self,
        *,
        kubeconfig: Path,
        work_dir: Path,
        images: Sequence[Image],
        log_file: Path,
        pulls_by_hand: bool = False,
    ) -> None:
        self._kubeconfig = kubeconfig
        self._work_dir = work_dir
        self._images = images
        self._log_file = log_file
        self._pulls_by_hand = pulls_by_hand
        self._process: subprocess.Popen[str] | None = None
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._pending: dict[int, Future[Any]] = {}

    @property
    def pid(self) -> int | None:
        """The agent's process, None when it is not running."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process and wait until it serves.

        Raises NamespacesForbidden where pods cannot be isolated, NodeAgentError when it does not come up.
        """
        self._work_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self._environment(),
                cwd="/",
                start_new_session=True,
            )
        greeting: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._listen, args=(self._process, greeting), name="node-agent", daemon=True).start()
        try:
            first = greeting.get(timeout=START_SECONDS)
        except queue.Empty:
            first = {}
        if "ready" in first:
            return
        self.stop()
        failure = first.get("failed", {})
        if failure.get("type") == "NamespacesForbidden":
            raise NamespacesForbidden(failure["message"])
        raise NodeAgentError(f"the node agent did not start; its log {self._log_file} says why")

    def stop(self) -> None:
        """End the process and every pod with it; nodes and pods stay in the API."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdin.close()

    def add_node(self, spec: NodeSpec) -> None:
        """Register a Node; returns when it is in the API. Raises NodeAgentError."""
        self._request("add_node", spec=spec.to_json())

    def remove_node(self, name: str, *, delete_object: bool = True) -> None:
        """Kill a node's pods and (unless told not to) delete its Node and Lease; an unknown name is no error."""
        self._request("remove_node", name=name, delete_object=delete_object)

    def set_node_labels(self, name: str, labels: Mapping[str, str]) -> None:
        """The labels that its kubelet goes by from now on, as they were changed on the Node."""
        self._request("set_node_labels", name=name, labels=dict(labels))

    def shut_down_node(self, name: str, *, seconds: float) -> None:
        """The kubelet's graceful shutdown: pods get so many seconds to end, and fail with reason Terminated.

        The Node stays, not Ready, until it is removed; an unknown name is no error.
        """
        self._request("shut_down_node", name=name, seconds=seconds)

    def live(self, seconds: float) -> None:
        """Let the pulls of all nodes go on for so long."""
        self._request("live", seconds=seconds)

    def set_device_plugin_ready(self, ready: bool) -> None:
        """False keeps GPUs from becoming allocatable on all nodes, however well the device plugin runs."""
        self._request("set_device_plugin_ready", ready=ready)

    def set_driver_ready(self, ready: bool) -> None:
        """False takes NVIDIA's driver away from all nodes: device plugins find no GPU, installers install nothing."""
        self._request("set_driver_ready", ready=ready)

    def show_gpu_uses(self, uses: Sequence[Mapping[str, Any]]) -> None:
        """What the simulated nvidia-smi shows from now on, by `faults.GpuUse` as plain data."""
        self._request("show_gpu_uses", uses=list(uses))

    def _command(self) -> list[str]:
        images = json.dumps([image.to_json() for image in self._images])
        command = [sys.executable, "-m", "gpu_sandbox.nodes.agent"]
        command += ["--kubeconfig", str(self._kubeconfig), "--work-dir", str(self._work_dir), "--images", images]
        return [*command, "--pulls-by-hand"] if self._pulls_by_hand else command

    def _environment(self) -> dict[str, str]:
        package = str(Path(gpu_sandbox.__file__).parent.parent)
        kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
        return kept | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}

    def _request(self, operation: str, **arguments: Any) -> Any:
        answer: Future[Any] = Future()
        with self._lock:
            process = self._process
            if process is None or process.stdin is None:
                raise NodeAgentError("the node agent is not running")
            number = next(self._ids)
            self._pending[number] = answer
            try:
                process.stdin.write(json.dumps({"id": number, "op": operation, "arguments": arguments}) + "\n")
                process.stdin.flush()
            except OSError as error:
                raise NodeAgentError(f"the node agent has ended; see {self._log_file}") from error
        return answer.result(REQUEST_SECONDS)

    def _listen(self, process: subprocess.Popen[str], greeting: queue.Queue[dict[str, Any]]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                message = json.loads(line)
                if "id" not in message:
                    greeting.put(message)
                    continue
                answer = self._pending.pop(message["id"])
                if "error" in message:
                    failure = message["error"]
                    answer.set_exception(NodeAgentError(f"{failure['type']}: {failure['message']}"))
                else:
                    answer.set_result(message["result"])
        greeting.put({})
        with self._lock:
            pending, self._pending = self._pending, {}
        for answer in pending.values():
            answer.set_exception(NodeAgentError(f"the node agent has ended; see {self._log_file}"))
