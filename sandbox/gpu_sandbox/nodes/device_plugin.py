"""NVIDIA's device plugin and driver installers, as far as a cluster can see them: what they log and when they end."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_sandbox.nodes import clock

_IDLE = "trap 'exit 0' TERM INT; while :; do sleep 3600 & wait $!; done"
IDLE_COMMAND = ["sh", "-c", _IDLE]
"""A plugin that does what it does until it is told to end."""
_FAIL = "exit 1"
_DRIVER_DONE = "echo 'NVIDIA driver installed (simulated)'; "

_START = (
    "Starting FS watcher for /var/lib/kubelet/device-plugins",
    "Starting OS watcher.",
    "Starting Plugins.",
    "Loading configuration.",
    "Retrieving plugins.",
)
_NO_NVML = (
    "Failed to initialize NVML: ERROR_LIBRARY_NOT_FOUND.",
    "If this is a GPU node, did you set the docker default runtime to `nvidia`?",
    "You can check the prerequisites at: https://github.com/NVIDIA/k8s-device-plugin#prerequisites",
)
_REGISTERED = (
    "Starting GRPC server for 'nvidia.com/gpu'",
    "Starting to serve 'nvidia.com/gpu' on /var/lib/kubelet/device-plugins/nvidia-gpu.sock",
    "Registered device plugin for 'nvidia.com/gpu' with Kubelet",
)


def fails(environment: Mapping[str, str], *, node_has_gpus: bool) -> bool:
    """Whether the plugin ends with an error: on a node without GPUs, unless FAIL_ON_INIT_ERROR says not to."""
    strict = environment.get("FAIL_ON_INIT_ERROR", "true").lower() in ("true", "1", "t")
    return strict and not node_has_gpus


def command(environment: Mapping[str, str], *, node_has_gpus: bool) -> list[str]:
    """The plugin as a process: it idles, or fails."""
    return ["sh", "-c", _FAIL if fails(environment, node_has_gpus=node_has_gpus) else _IDLE]


def driver_command(*, is_init: bool) -> list[str]:
    """A driver installer as a process: done at once as an init container, else it stays."""
    return ["sh", "-c", _DRIVER_DONE + ("exit 0" if is_init else _IDLE)]


def start_log(*, registered: bool, failing: bool) -> bytes:
    """What the plugin says when it starts."""
    if registered:
        return _lines("I", _START) + registration_log()
    last = (
        ("Failed to start plugins: failed to initialize NVML",)
        if failing
        else ("No devices found. Waiting indefinitely.",)
    )
    return _lines("I", _START) + _lines("E", _NO_NVML) + _lines("I", last)


def registration_log() -> bytes:
    """What the plugin says when it has registered its GPUs with the kubelet."""
    return _lines("I", _REGISTERED)


def _lines(level: str, texts: tuple[str, ...]) -> bytes:
    stamp = f"{clock.now():%m%d %H:%M:%S.%f}"
    return "".join(f"{level}{stamp}       1 main.go:1] {text}\n" for text in texts).encode()
