"""What a container runs, and in which surroundings: the plan that the launcher carries out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_sandbox.nodes import device_plugin, environment, gpus, volumes
from gpu_sandbox.nodes.errors import ContainerStartError
from gpu_sandbox.nodes.spec import Image

if TYPE_CHECKING:
    from gpu_sandbox.nodes.container import PodHome
    from gpu_sandbox.nodes.status import ContainerRecord

TERMINATION_LOG = "termination-log"
_HOSTS = "/etc/hosts"
_SHM_BYTES = 64 * 2**20
_TOOLKIT_BIN = "/run/nvidia/bin"
"""Stands for /usr/bin, where NVIDIA's container toolkit puts nvidia-smi: not every container here can add to that."""
_NVIDIA = "/usr/local/nvidia"


async def variables(container: Mapping[str, Any], image: Image, home: PodHome) -> dict[str, str]:
    """A container's whole environment: the runtime's, the image's, its GPUs', the pod's.

    Raises ConfigError for a reference to what is not there.
    """
    path = environment.DEFAULT_PATH
    base = {
        "PATH": f"{image.path_prefix}:{path}" if image.path_prefix else path,
        "HOME": "/" if _security(container, home.pod).get("runAsUser") else "/root",
        "HOSTNAME": home.kernel_name,
    }
    access = home.machine.api.access
    services = environment.service_variables(access.host, access.port)
    asked = await environment.build(container, home.pod, facts=home.facts, services=services, lookup=home.lookup)
    result = base | dict(image.env) | _gpu_variables(container, home) | asked
    seen = gpus.visible(home.node.gpus, result.get("NVIDIA_VISIBLE_DEVICES", ""))
    if seen and not home.machine.real_gpus and not home.node.spec.nvidia_is_apart:
        result["PATH"] += f":{_TOOLKIT_BIN}"
    return result


def _gpu_variables(container: Mapping[str, Any], home: PodHome) -> dict[str, str]:
    held = home.node.inventory.held_by(home.uid, container["name"])
    if not held:
        return {}
    return {
        "NVIDIA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in held),
        "CUDA_VISIBLE_DEVICES": ",".join(gpu.cuda_name for gpu in held),
    }


def of(
    container: Mapping[str, Any],
    image: Image,
    variables: Mapping[str, str],
    home: PodHome,
    record: ContainerRecord,
) -> list[str]:
    """The program and its arguments. Raises ContainerStartError when neither pod nor image names one."""
    if image.kind == "device-plugin":
        return device_plugin.command(variables, node_has_gpus=home.node.gpus_usable)
    if image.kind == "efa-plugin":
        return device_plugin.IDLE_COMMAND
    if image.kind == "driver":
        return device_plugin.driver_command(is_init=record.is_init and not record.is_sidecar)
    asked = [*(container.get("command") or ()), *(container.get("args") or ())]
    argv = [environment.expand(word, variables) for word in asked] or list(image.default_command)
    if not argv:
        raise ContainerStartError("no command specified")
    return argv


def start_spec(
    container: Mapping[str, Any],
    image: Image,
    variables: Mapping[str, str],
    home: PodHome,
    argv: list[str],
    attempt: Path,
) -> dict[str, Any]:
    """What the zygote is told about a container; ``attempt`` is the folder of this run of it."""
    security = _security(container, home.pod)
    mounts = volumes.mounts(container, home.volumes, variables)
    mounts.append(_mount(attempt / TERMINATION_LOG, container.get("terminationMessagePath") or "/dev/termination-log"))
    if not any(mount["target"] == _HOSTS for mount in mounts):
        mounts.append(_mount(home.hosts_file, _HOSTS))
    if image.folder is not None:
        mounts.append(_mount(image.folder, "/app", read_only=True))
    devices = _gpu_mounts(variables, home, mounts, attempt)
    uid, gid = security.get("runAsUser"), security.get("runAsGroup")
    return {
        "argv": argv,
        "env": dict(variables),
        "cwd": container.get("workingDir") or ("/app" if image.folder is not None else "/"),
        "hostname": home.kernel_name,
        "staging": str(home.machine.staging),
        "mounts": mounts,
        "keep": home.machine.kept_paths(image),
        "devices": devices,
        "shm_bytes": _SHM_BYTES,
        "tty": bool(container.get("tty")),
        "uid": uid,
        "gid": gid if gid is not None else (0 if uid is not None else None),
        "groups": [*(security.get("supplementalGroups") or ()), *_group(security.get("fsGroup"))],
        "privileged": bool(security.get("privileged")),
    }


def _security(container: Mapping[str, Any], pod: Mapping[str, Any]) -> dict[str, Any]:
    return (pod["spec"].get("securityContext") or {}) | (container.get("securityContext") or {})


def _gpu_mounts(variables: Mapping[str, str], home: PodHome, mounts: list[dict[str, Any]], attempt: Path) -> list[str]:
    """As NVIDIA's container runtime: GPUs appear where NVIDIA_VISIBLE_DEVICES asks for them. Returns device files."""
    chosen = gpus.visible(home.node.gpus, variables.get("NVIDIA_VISIBLE_DEVICES", ""))
    if home.machine.real_gpus or not chosen:
        return gpus.devices(chosen) if chosen else []
    list_file = attempt / "gpus.json"
    where = {"node": home.node.name, "pod": home.pod["metadata"]["name"]}
    list_file.write_text(json.dumps([{**gpu.to_json(), **where} for gpu in chosen]))
    apart = home.node.spec.nvidia_is_apart
    programs = f"{_NVIDIA}/bin" if apart else _TOOLKIT_BIN
    mounts.append(_mount(home.machine.smi_folder(apart=apart), programs, read_only=True))
    mounts.append(_mount(list_file, f"{_NVIDIA}/gpus.json", read_only=True))
    return []


def _mount(source: Path, target: str, *, read_only: bool = False) -> dict[str, Any]:
    return {"source": str(source.resolve()), "target": target, "read_only": read_only}


def _group(group: int | None) -> list[int]:
    return [] if group is None else [group]
