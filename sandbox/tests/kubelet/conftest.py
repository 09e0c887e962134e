"""A sandbox with one more machine, on which a real kubelet runs."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_sandbox.build import binary_of
from gpu_sandbox.sandbox import Sandbox
from sandbox.tests.kubelet.machine import KubeletMachine, traces
from sandbox.tests.kubelet.needs import missing
from sandbox.tests.kubelet.programs import DEVICE_PLUGIN, KUBELET
from sandbox.tests.kubelet.registry import BUSYBOX, Registry, TestImage
from tests.sandbox.running import eventually

NODE = "metal-1"


@pytest.fixture(scope="session")
def kubelet_machine(gpu_sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeletMachine]:
    if lacks := missing():
        pytest.skip(f"a kubelet needs {', '.join(lacks)}")
    folder = tmp_path_factory.mktemp("kubelet")
    before = traces()
    with (
        Registry(images()) as registry,
        KubeletMachine(
            name=NODE,
            control_plane=gpu_sandbox.control_plane,
            kubelet=binary_of(KUBELET, print),
            registry=registry.url,
            folder=folder,
        ) as machine,
    ):
        yield machine
    # The kernel takes a container's network away some time after its last process has ended.
    eventually(lambda: not traces() - before)


@pytest.fixture(scope="session")
def node(kubelet_machine: KubeletMachine) -> str:
    return kubelet_machine.name


@pytest.fixture(scope="session")
def kubeconfig(gpu_sandbox: Sandbox) -> Path:
    return gpu_sandbox.kubeconfig


def images() -> list[TestImage]:
    listed = subprocess.run([BUSYBOX, "--list"], capture_output=True, text=True, check=True)
    links = {f"/bin/{name}": "/bin/busybox" for name in listed.stdout.split() if name != "busybox"}
    busybox = {"files": {"/bin/busybox": BUSYBOX}, "links": links}
    plugin = binary_of(DEVICE_PLUGIN, print)
    return [
        TestImage(pattern="busybox:*", **busybox),
        TestImage(pattern="alpine:*", **busybox),
        TestImage(pattern="pause:*", entrypoint=["/bin/sleep", "2147483647"], **busybox),
        TestImage(
            pattern="nvidia/k8s-device-plugin:*",
            files={"/bin/deviceplugin": plugin},
            links={},
            entrypoint=["/bin/deviceplugin"],
        ),
    ]
