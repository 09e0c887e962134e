"""The two Go programs of this folder: a real kubelet, and a device plugin whose GPUs are simulated."""

from __future__ import annotations

from pathlib import Path

from gpu_sandbox.build import KUBERNETES_VERSION, GoProgram, binary_of

_MODULE = Path(__file__).parent / "go"

KUBELET = GoProgram(
    name="kubelet",
    module=_MODULE,
    package="kubelet",
    title=f"the Kubernetes {KUBERNETES_VERSION} kubelet",
    takes="after the control plane half a minute",
    packages=200,
)
DEVICE_PLUGIN = GoProgram(
    name="deviceplugin",
    module=_MODULE,
    package="deviceplugin",
    title="the tests' device plugin",
    takes="after the control plane seconds",
    packages=20,
)

if __name__ == "__main__":
    for program in (KUBELET, DEVICE_PLUGIN):
        binary_of(program, lambda line: print(line, flush=True))
