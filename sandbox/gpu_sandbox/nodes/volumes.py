"""The volumes of a pod: each becomes a folder or a file on this machine that containers get bind-mounted."""

from __future__ import annotations

import os
import stat
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_sandbox.nodes import environment, quantities
from gpu_sandbox.nodes.errors import NodeAgentError


class VolumeError(NodeAgentError):
    """A volume cannot be set up (yet); the text is what the kubelet's FailedMount event says."""


TokenSource = Callable[[Mapping[str, Any]], Awaitable[str]]
"""A projected serviceAccountToken source -> a token bound to the pod."""

_TYPES_MADE = {"DirectoryOrCreate", "FileOrCreate", ""}
_TYPE_CHECKS = {
    "Directory": ("is not a directory", stat.S_ISDIR),
    "DirectoryOrCreate": ("is not a directory", stat.S_ISDIR),
    "File": ("is not a file", stat.S_ISREG),
    "FileOrCreate": ("is not a file", stat.S_ISREG),
    "Socket": ("is not a socket file", stat.S_ISSOCK),
    "CharDevice": ("is not a character device", stat.S_ISCHR),
    "BlockDevice": ("is not a block device", stat.S_ISBLK),
}


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What volumes are made from."""

    folder: Path
    """The pod's own folder for volumes."""
    node_folder: Path
    """Stands for the node's disk where this machine has no such path."""
    facts: environment.Facts
    lookup: environment.Lookup
    persistent_volume: Callable[[str], Awaitable[Mapping[str, Any] | None]]
    token: TokenSource
    mount_tmpfs: Callable[[str, str], Awaitable[None]]


async def set_up(pod: Mapping[str, Any], around: Surroundings) -> dict[str, Path]:
    """Make all volumes of a pod: volume name -> path. Raises VolumeError when one cannot be made."""
    paths: dict[str, Path] = {}
    for volume in pod["spec"].get("volumes") or ():
        try:
            paths[volume["name"]] = await _one(volume, pod, around)
        except (VolumeError, environment.ConfigError, OSError) as error:
            raise VolumeError(f'MountVolume.SetUp failed for volume "{volume["name"]}" : {error}') from error
    return paths


async def _one(volume: Mapping[str, Any], pod: Mapping[str, Any], around: Surroundings) -> Path:
    folder: Path = around.folder / volume["name"]
    if "hostPath" in volume:
        return _host_path(volume["hostPath"], around.node_folder)
    if "persistentVolumeClaim" in volume:
        return await _claimed(volume["persistentVolumeClaim"]["claimName"], around)
    os.makedirs(folder, exist_ok=True)
    if "emptyDir" in volume or set(volume) == {"name"}:
        await _empty(volume.get("emptyDir") or {}, folder, pod, around)
        return folder
    for kind in ("configMap", "secret", "downwardAPI", "projected"):
        if kind in volume:
            await _write_source(kind, volume[kind], folder, pod, around)
            return folder
    raise VolumeError(f"process nodes have no volumes of this kind: {', '.join(set(volume) - {'name'})}")


async def _empty(source: Mapping[str, Any], folder: Path, pod: Mapping[str, Any], around: Surroundings) -> None:
    os.chmod(folder, 0o777)
    if source.get("medium") == "Memory":
        size = source.get("sizeLimit") or _memory_limit(pod)
        options = "mode=1777" + (f",size={quantities.whole(size)}" if size else "")
        await around.mount_tmpfs(str(folder), options)


def _memory_limit(pod: Mapping[str, Any]) -> int | None:
    limits = [((c.get("resources") or {}).get("limits") or {}).get("memory") for c in pod["spec"]["containers"]]
    return sum(quantities.whole(limit) for limit in limits if limit) if all(limits) else None


def _host_path(source: Mapping[str, Any], node_folder: Path) -> Path:
    """The machine's own path where it has one; what a pod would create goes to the node's folder instead."""
    kind = source.get("type") or ""
    path = Path(source["path"])
    if not path.exists() and kind in _TYPES_MADE:
        path = node_folder / source["path"].lstrip("/")
        if kind == "FileOrCreate":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        else:
            path.mkdir(parents=True, exist_ok=True)
    if kind in _TYPE_CHECKS:
        complaint, check = _TYPE_CHECKS[kind]
        if not path.exists() or not check(path.stat().st_mode):
            raise VolumeError(f"hostPath type check failed: {source['path']} {complaint}")
    return path.resolve()


async def _claimed(claim: str, around: Surroundings) -> Path:
    volume = await around.persistent_volume(claim)
    if volume is None:
        raise VolumeError(f'persistentvolumeclaim "{claim}" is not bound')
    for kind in ("hostPath", "local"):
        if kind in volume["spec"]:
            return _host_path(volume["spec"][kind], around.node_folder)
    raise VolumeError(f"process nodes mount only hostPath and local volumes, not {volume['metadata']['name']}")


async def _write_source(
    kind: str, source: Mapping[str, Any], folder: Path, pod: Mapping[str, Any], around: Surroundings
) -> None:
    default_mode = source.get("defaultMode") or 0o644
    parts = source["sources"] if kind == "projected" else [{kind: source}]
    for part in parts:
        for part_kind, content in part.items():
            if content is None:
                continue
            files = await _files(part_kind, content, pod, around)
            for name, (data, mode) in files.items():
                _write(folder / name, data, default_mode if mode is None else mode)


Files = dict[str, tuple[bytes, int | None]]


async def _files(kind: str, source: Mapping[str, Any], pod: Mapping[str, Any], around: Surroundings) -> Files:
    match kind:
        case "configMap" | "secret":
            return await _object_files(kind, source, pod, around)
        case "downwardAPI":
            return {item["path"]: _downward(item, pod, around) for item in source.get("items") or ()}
        case "serviceAccountToken":
            return {source["path"]: ((await around.token(source)).encode(), None)}
    raise VolumeError(f"process nodes have no projected source of this kind: {kind}")


async def _object_files(kind: str, source: Mapping[str, Any], pod: Mapping[str, Any], around: Surroundings) -> Files:
    name = source.get("name") or source.get("secretName") or ""
    data = await around.lookup(kind.lower(), name)
    if data is None:
        if source.get("optional"):
            return {}
        raise VolumeError(f'{kind.lower()} "{name}" not found')
    items = source.get("items")
    if not items:
        return {key: (value, None) for key, value in data.items()}
    files: Files = {}
    for item in items:
        if item["key"] in data:
            files[item["path"]] = (data[item["key"]], item.get("mode"))
        elif not source.get("optional"):
            what = (
                "configmap references non-existent config key"
                if kind == "configMap"
                else ("references non-existent secret key")
            )
            raise VolumeError(f"{what}: {item['key']}")
    return files


def _downward(item: Mapping[str, Any], pod: Mapping[str, Any], around: Surroundings) -> tuple[bytes, int | None]:
    if field := item.get("fieldRef"):
        text = environment.field_value(field["fieldPath"], pod, around.facts)
    else:
        reference = item["resourceFieldRef"]
        named = [c for c in pod["spec"]["containers"] if c["name"] == reference.get("containerName")]
        text = environment.resource_value(reference, (named or pod["spec"]["containers"])[0], around.facts)
    return text.encode(), item.get("mode")


def _write(path: Path, data: bytes, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_bytes(data)
    fresh.chmod(mode)
    os.replace(fresh, path)


def mounts(
    container: Mapping[str, Any], paths: Mapping[str, Path], variables: Mapping[str, str]
) -> list[dict[str, Any]]:
    """A container's volumeMounts as the root file system wants them: source, target, read_only, make.

    ``make`` says that the source, a subPath, is made where it is missing.
    """
    result: list[dict[str, Any]] = []
    for mount in container.get("volumeMounts") or ():
        sub_path = environment.expand(mount.get("subPathExpr") or "", variables) or mount.get("subPath") or ""
        source = os.path.normpath(paths[mount["name"]] / sub_path)
        target = os.path.normpath("/" + mount["mountPath"])
        read_only = bool(mount.get("readOnly"))
        result.append({"source": source, "target": target, "read_only": read_only, "make": bool(sub_path)})
    return result
