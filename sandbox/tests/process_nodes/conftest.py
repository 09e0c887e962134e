"""Nodes of one agent on the folder's control plane, and a small hand for tests to run pods with."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config, stream

from gpu_sandbox.control_plane import ControlPlane
from gpu_sandbox.nodes import Image, NodeAgent, NodeSpec, Taint
from tests.sandbox.running import watched
from tests.sandboxes import control_plane_in

PLUGIN = "nvcr.io/nvidia/k8s-device-plugin:v0.20.0"
GPU_TAINT = Taint(key="nvidia.com/gpu", value="true")
CPU_NODE = NodeSpec(name="cpu-node", labels={"role": "cpu"}, cpus=64, memory_bytes=64 * 2**30)
GPU_NODE = NodeSpec(name="gpu-node", labels={"role": "gpu"}, taints=(GPU_TAINT,), cpus=64, gpus=2)
_names = itertools.count()


def images(app: Path) -> tuple[Image, ...]:
    interpreter = str(Path(sys.executable).parent)
    return (
        Image(pattern="python:*", path_prefix=interpreter, default_command=("python", "-c", "print('default')")),
        Image(pattern="app:*", folder=app, path_prefix=interpreter, env={"FROM_IMAGE": "yes"}),
        Image(pattern="busybox*"),
        Image(pattern="alpine*"),
        Image(pattern="nvidia/cuda:*", env={"NVIDIA_VISIBLE_DEVICES": "all"}),
        Image(pattern="slow:*", pull_seconds=1.5),
        Image(pattern="nvcr.io/nvidia/k8s-device-plugin:*", kind="device-plugin"),
    )


@pytest.fixture(scope="package")
def control_plane(binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One for all files of this folder, with the agent on it."""
    with control_plane_in(tmp_path_factory.mktemp("control-plane"), binary) as control_plane:
        yield control_plane


@pytest.fixture(scope="session")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("app")
    (folder / "train.py").write_text("import os; print('trained in', os.getcwd(), os.environ['FROM_IMAGE'])\n")
    return folder


@pytest.fixture(scope="package")
def agent(control_plane: ControlPlane, app: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeAgent]:
    folder = tmp_path_factory.mktemp("agent")
    agent = NodeAgent(
        kubeconfig=control_plane.kubeconfig, work_dir=folder / "work", images=images(app), log_file=folder / "log"
    )
    agent.start()
    agent.add_node(CPU_NODE)
    agent.add_node(GPU_NODE)
    yield agent
    agent.stop()
    errors = [line for line in (folder / "log").read_text().splitlines() if " ERROR " in line or "Traceback" in line]
    assert not errors, (folder / "log").read_text()[-5000:]


@dataclass
class Cluster:
    """The API as a test's namespace sees it."""

    core: client.CoreV1Api
    namespace: str
    agent: NodeAgent
    versions: dict[str, str] = field(default_factory=dict)
    """That of each pod when it was created, to watch it from."""

    def pod(self, *command: str, image: str = "busybox:1", gpus: int = 0, node: str = "cpu", **spec: Any) -> str:
        """Create a pod that runs a command (or with ``containers`` more than one); returns its name.

        Keys of a container (``env``, ``resources``, ...) are for the one container, the others for the pod.
        """
        name = f"pod-{next(_names)}"
        keys = client.V1Container.openapi_types.keys() - {"name"} - {"restart_policy"}
        camel = {client.V1Container.attribute_map[key] for key in keys}
        container = {"name": "main", "image": image, "command": list(command) or None}
        if "containers" not in spec:
            container |= {key: spec.pop(key) for key in list(spec) if key in camel}
        if gpus:
            container.setdefault("resources", {})["limits"] = {"nvidia.com/gpu": str(gpus)}
        selector = {"nodeSelector": {"role": node}} if node else {}
        body = {
            "metadata": {"name": name, **spec.pop("metadata", {})},
            "spec": {
                "restartPolicy": "Never",
                "containers": [container],
                "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
                "terminationGracePeriodSeconds": 5,
                **selector,
                **spec,
            },
        }
        self.versions[name] = self.core.create_namespaced_pod(self.namespace, body).metadata.resource_version
        return name

    def sh(self, script: str, **spec: Any) -> str:
        return self.pod("sh", "-c", script, **spec)

    def read(self, name: str) -> client.V1Pod:
        return self.core.read_namespaced_pod(name, self.namespace)

    def wait(self, name: str, *phases: str, seconds: float = 120) -> client.V1Pod:
        return self.until(name, lambda pod: pod.status.phase in phases, f"phase {phases}", seconds)

    def until(
        self, name: str, condition: Callable[[client.V1Pod], Any], what: str = "condition", seconds: float = 120
    ) -> client.V1Pod:
        deadline = time.monotonic() + seconds
        while True:
            pod = self.read(name)
            if condition(pod):
                return pod
            if time.monotonic() > deadline:
                pytest.fail(f"{what} of {name} not met in {seconds} s: {pod.status}")
            time.sleep(0.02)

    def until_container(
        self, name: str, condition: Callable[[client.V1ContainerStatus], Any], what: str = "state", seconds: float = 120
    ) -> client.V1Pod:
        """Wait for what is said of the first container, once anything is."""
        return self.until(name, lambda p: (s := p.status.container_statuses) and condition(s[0]), what, seconds)

    def seen(self, name: str, until: Callable[[client.V1Pod], Any]) -> list[client.V1Pod]:
        """All states of a pod since its creation, up to the first that is looked for: none is too short to be seen."""
        return watched(
            self.core.list_namespaced_pod,
            self.versions[name],
            lambda _, pod: until(pod),
            namespace=self.namespace,
            field_selector=f"metadata.name={name}",
        )

    def end(self, name: str) -> client.V1ContainerStateTerminated:
        """How the pod's first container ended."""
        pod = self.wait(name, "Succeeded", "Failed")
        return pod.status.container_statuses[0].state.terminated

    def waiting(self, name: str, reason: str, seconds: float = 120) -> str:
        """The message of the first container once it waits for a reason."""
        pod = self.until_container(
            name, lambda s: s.state.waiting and s.state.waiting.reason == reason, reason, seconds
        )
        return str(pod.status.container_statuses[0].state.waiting.message)

    def logs(self, name: str, **options: Any) -> str:
        # Decoded here: the client would give the repr of the bytes.
        options["_preload_content"] = False
        return str(self.core.read_namespaced_pod_log(name, self.namespace, **options).read().decode())

    def output(self, script: str, **spec: Any) -> str:
        """What a script prints in a pod of its own, which must succeed."""
        name = self.sh(script, **spec)
        end = self.end(name)
        text = self.logs(name)
        assert end.exit_code == 0, f"{end}\n{text}"
        return text

    def exec(self, name: str, *command: str, **options: Any) -> str:
        options = {"stderr": True, "stdin": False, "stdout": True, "tty": False} | options
        call = self.core.connect_get_namespaced_pod_exec
        return str(stream.stream(call, name, self.namespace, command=list(command), **options))

    def delete(self, name: str, **options: Any) -> None:
        self.core.delete_namespaced_pod(name, self.namespace, **options)

    def wait_gone(self, name: str, seconds: float = 120) -> None:
        """Wait until the pod's object is gone."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            named = self.core.list_namespaced_pod(self.namespace, field_selector=f"metadata.name={name}")
            if not named.items:
                return
            time.sleep(0.01)
        pytest.fail(f"{name} is still there after {seconds} s: {self.read(name).status}")

    def events(self, name: str) -> list[tuple[str, str, str]]:
        """(type, reason, message) of the kubelet's events about a pod, oldest first."""
        found = self.core.list_namespaced_event(self.namespace, field_selector=f"involvedObject.name={name}").items
        kubelet = [e for e in found if e.source.component == "kubelet"]
        kubelet.sort(key=lambda e: int(e.metadata.resource_version))
        return [(e.type, e.reason, e.message) for e in kubelet]

    def wait_event(self, name: str, reason: str, seconds: float = 120) -> str:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for _, found, message in self.events(name):
                if found == reason:
                    return message
            time.sleep(0.05)
        pytest.fail(f"no event {reason} about {name}: {self.events(name)}")


@pytest.fixture(scope="package")
def core(control_plane: ControlPlane) -> client.CoreV1Api:
    loaded = config.new_client_from_config(str(control_plane.kubeconfig))
    return client.CoreV1Api(loaded)


@pytest.fixture
def cluster(agent: NodeAgent, core: client.CoreV1Api) -> Iterator[Cluster]:
    namespace = f"test-{next(_names)}"
    core.create_namespace({"metadata": {"name": namespace}})
    _await_account(core, namespace)
    yield Cluster(core, namespace, agent)
    core.delete_collection_namespaced_pod(namespace, grace_period_seconds=0)
    core.delete_namespace(namespace)


def _await_account(core: client.CoreV1Api, namespace: str) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if core.list_namespaced_service_account(namespace).items:
            return
        time.sleep(0.02)
    pytest.fail(f"no service account appeared in {namespace}")
