"""The Linux system calls that Python 3.11 does not offer: namespaces, mounts and process control."""

from __future__ import annotations

import ctypes
import errno
import os
import platform

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 0x1, 0x2, 0x4, 0x8
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
MNT_DETACH = 2
CLONE_NEWNS, CLONE_NEWUTS = 0x20000, 0x4000000
CLONE_NEWUSER, CLONE_NEWPID = 0x10000000, 0x20000000

_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_NAME = 1, 24, 15
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_PIDFD_GETFD = 438
_MOUNT_SETATTR = 442
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_MOUNT_ATTR_RDONLY = 0x1

_libc = ctypes.CDLL(None, use_errno=True)


class _MountAttr(ctypes.Structure):
    _fields_ = [
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    ]


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    """Leave the namespaces in flags for new ones."""
    _checked(_libc.unshare(ctypes.c_int(flags)), f"unshare({flags:#x})")


def setns(fd: int, flags: int) -> None:
    """Join the namespaces in flags of the process behind a pidfd."""
    _checked(_libc.setns(ctypes.c_int(fd), ctypes.c_int(flags)), f"setns({flags:#x})")


def pidfd_getfd(pidfd: int, number: int) -> int:
    """A descriptor of ours for what another process has open as `number`; FileNotFoundError where that is closed."""
    descriptor: int = _libc.syscall(_PIDFD_GETFD, pidfd, number, 0)
    if descriptor < 0 and ctypes.get_errno() == errno.EBADF:
        raise FileNotFoundError(errno.EBADF, f"descriptor {number} is not open")
    return _checked(descriptor, f"pidfd_getfd({number})")


def mount(source: str, target: str, fstype: str = "", flags: int = 0, data: str = "") -> None:
    """mount(2)."""
    result = _libc.mount(
        source.encode(),
        target.encode(),
        fstype.encode() or None,
        ctypes.c_ulong(flags),
        data.encode() or None,
    )
    _checked(result, f"mount {fstype or 'bind'} {source} on {target}")


def bind(source: str, target: str, *, read_only: bool = False) -> None:
    """Bind-mount source, with all that is mounted below it, on target."""
    mount(source, target, flags=MS_BIND | MS_REC)
    if read_only:
        make_read_only(target)


def make_read_only(target: str) -> None:
    """Make a mount, and all mounts below it, read-only for those who see this mount."""
    attr = _MountAttr(attr_set=_MOUNT_ATTR_RDONLY)
    result = _libc.syscall(
        ctypes.c_long(_MOUNT_SETATTR),
        ctypes.c_int(_AT_FDCWD),
        target.encode(),
        ctypes.c_uint(_AT_RECURSIVE),
        ctypes.byref(attr),
        ctypes.c_size_t(ctypes.sizeof(attr)),
    )
    _checked(result, f"mount_setattr {target}")


def detach(target: str) -> None:
    """Unmount lazily."""
    _checked(_libc.umount2(target.encode(), ctypes.c_int(MNT_DETACH)), f"umount {target}")


def pivot_root(new_root: str, put_old: str) -> None:
    """Make new_root the root of this mount namespace, and hang the old one at put_old."""
    number = _PIVOT_ROOT.get(platform.machine())
    if number is None:
        raise OSError(38, f"pivot_root: its number on {platform.machine()} is not known here")
    _checked(_libc.syscall(ctypes.c_long(number), new_root.encode(), put_old.encode()), "pivot_root")


def die_with_parent(sig: int) -> None:
    """Have the kernel send us sig when the thread that started us ends."""
    _checked(_libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(sig), 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


def set_process_name(name: str) -> None:
    """The name that ps shows (15 characters)."""
    _checked(_libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0), "prctl(PR_SET_NAME)")


def drop_capability(number: int) -> None:
    """Take a capability out of what this process and its children may ever have."""
    _checked(_libc.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(number), 0, 0, 0), "prctl(PR_CAPBSET_DROP)")
