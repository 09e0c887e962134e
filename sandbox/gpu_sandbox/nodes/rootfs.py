"""The file system that a container sees: this machine's programs, with every write thrown away at the end.

Each folder of the machine's root appears under an overlay whose upper layer is in memory, so a container may write
anywhere and the machine never changes; /run, /tmp, /dev and /proc are the container's own. Where there is no overlayfs
a container may add to the folders of the root, but not change what is in them. Runs in the container's
own mount namespace, between fork and exec.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_sandbox.nodes import syscalls

_OWN = {"proc", "sys", "dev", "run", "tmp"}
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
_GUARDED_PROC = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus")
_OLD = "/.old-root"


def enter(staging: str, spec: Mapping[str, Any], *, in_user_namespace: bool) -> None:
    """Build the container's root below the folder staging and make it this process's root.

    ``spec``: ``mounts`` (source, target, read_only, make), ``keep`` (paths of the machine that must stay visible
    though /tmp and /run are fresh), ``devices`` (device files), ``shm_bytes``.
    """
    syscalls.mount("tmpfs", staging, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=0755")
    root = f"{staging}/root"
    os.mkdir(root)
    syscalls.mount("tmpfs", root, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=0755")
    # Relative paths to the layers: a colon or comma in staging would mean something else to overlayfs.
    os.chdir(staging)
    _lay_machine(root, "layers", in_user_namespace=in_user_namespace)
    _own_folders(root, spec)
    for path in spec["keep"]:
        if os.path.exists(path):
            os.makedirs(root + path, exist_ok=True)
            syscalls.bind(path, root + path, read_only=True)
    os.mkdir(root + _OLD)
    syscalls.pivot_root(root, root + _OLD)
    os.chdir("/")
    # Only now: below the old root an absolute link such as /var/run would lead out of the container.
    for mount in sorted(spec["mounts"], key=lambda m: m["target"].count("/")):
        _bind_volume(mount)
    syscalls.detach(_OLD)
    os.rmdir(_OLD)


def nested_mounts(mountinfo: str) -> list[str]:
    """The mount points that an overlay of a root folder would hide: the topmost below each such folder."""
    points = {line.split(" ")[4].encode().decode("unicode_escape") for line in mountinfo.splitlines()}
    nested: list[str] = []
    for point in sorted(points):
        parts = point.strip("/").split("/")
        if len(parts) > 1 and parts[0] not in _OWN and not any(point.startswith(f"{n}/") for n in nested):
            nested.append(point)
    return nested


def _lay_machine(root: str, layers: str, *, in_user_namespace: bool) -> None:
    extra = ",userxattr" if in_user_namespace else ""
    with open("/proc/self/mountinfo") as file:
        nested = nested_mounts(file.read())
    for entry in os.scandir("/"):
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), root + entry.path)
        elif entry.is_dir() and entry.name not in _OWN:
            _lay_folder(root, f"{layers}/{entry.name}", entry.path, nested, extra)


def _lay_folder(root: str, layer: str, path: str, nested: Sequence[str], extra: str) -> None:
    upper, work, target = f"{layer}/upper", f"{layer}/work", root + path
    os.makedirs(upper)
    os.mkdir(work)
    os.mkdir(target)
    try:
        syscalls.mount("overlay", target, "overlay", 0, f"lowerdir={path},upperdir={upper},workdir={work}{extra}")
    except OSError:
        # Not every file system can be a layer, nor, in a user namespace, one with mounts inside it.
        _lay_entries(path, target)
        return
    for point in nested:
        if point.startswith(f"{path}/") and os.path.exists(point) and os.path.exists(root + point):
            syscalls.bind(point, root + point, read_only=True)


def _lay_entries(path: str, target: str) -> None:
    """What stands in for an overlay: a folder in memory with the machine's entries in it, those read-only."""
    syscalls.mount("tmpfs", target, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=0755")
    if not os.access(path, os.R_OK | os.X_OK):
        return
    for entry in os.scandir(path):
        place = f"{target}/{entry.name}"
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), place)
        else:
            _mount_point(place, file=not entry.is_dir())
            syscalls.bind(entry.path, place, read_only=True)


def _own_folders(root: str, spec: Mapping[str, Any]) -> None:
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
    for name in sorted(_OWN):
        os.mkdir(f"{root}/{name}")
    syscalls.mount("proc", f"{root}/proc", "proc", flags | syscalls.MS_NOEXEC)
    for path in _GUARDED_PROC:
        if os.path.exists(root + path):
            syscalls.bind(root + path, root + path, read_only=True)
    syscalls.bind("/sys", f"{root}/sys", read_only=True)
    syscalls.mount("tmpfs", f"{root}/run", "tmpfs", flags, "mode=0755")
    os.mkdir(f"{root}/run/lock")
    syscalls.mount("tmpfs", f"{root}/tmp", "tmpfs", flags, "mode=1777")
    _devices(root, spec)


def _devices(root: str, spec: Mapping[str, Any]) -> None:
    syscalls.mount("tmpfs", f"{root}/dev", "tmpfs", syscalls.MS_NOSUID, "mode=0755")
    for name in (*_DEVICES, *(path.removeprefix("/dev/") for path in spec["devices"])):
        if os.path.exists(f"/dev/{name}"):
            _mount_point(f"{root}/dev/{name}", file=True)
            syscalls.bind(f"/dev/{name}", f"{root}/dev/{name}")
    for name, target in _DEVICE_LINKS.items():
        os.symlink(target, f"{root}/dev/{name}")
    os.mkdir(f"{root}/dev/pts")
    options = "newinstance,ptmxmode=0666,mode=0620"
    syscalls.mount("devpts", f"{root}/dev/pts", "devpts", syscalls.MS_NOSUID | syscalls.MS_NOEXEC, options)
    os.mkdir(f"{root}/dev/shm")
    size = f"mode=1777,size={spec['shm_bytes']}"
    syscalls.mount("tmpfs", f"{root}/dev/shm", "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, size)


def _bind_volume(mount: Mapping[str, Any]) -> None:
    source, target = _OLD + mount["source"], mount["target"]
    if mount.get("make") and not os.path.exists(source):
        os.makedirs(source)
    if not os.path.exists(source):
        raise FileNotFoundError(f'failed to mount "{mount["source"]}" at "{target}": no such file or directory')
    is_file = not stat.S_ISDIR(os.stat(source).st_mode)
    try:
        _mount_point(target, file=is_file)
    except PermissionError:
        # In a user namespace nobody may write to what belongs to the machine's root, not even in an overlay.
        folder = _nearest_folder(target)
        _lay_entries(_OLD + folder, folder)
        _mount_point(target, file=is_file)
    syscalls.bind(source, target, read_only=mount["read_only"])


def _nearest_folder(path: str) -> str:
    folder = os.path.dirname(path)
    return folder if os.path.isdir(folder) else _nearest_folder(folder)


def _mount_point(path: str, *, file: bool) -> None:
    if os.path.exists(path):
        return
    if not file:
        os.makedirs(path)
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
