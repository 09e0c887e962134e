"""What a real kubelet needs of this machine, and how to say what is missing."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from sandbox.tests.kubelet.registry import BUSYBOX

CNI_PLUGINS = Path("/usr/lib/cni")
PACKAGES = "containerd runc containernetworking-plugins busybox-static iproute2 util-linux"
_PROGRAMS = ("containerd", "runc", "ip", "unshare", "mount")
_SYSTEM_PATH = ":/usr/sbin:/sbin"


def missing() -> list[str]:
    """Return what is missing, in words; nothing on a machine that can run a kubelet."""
    if sys.platform != "linux":
        return ["Linux"]
    lacks = [] if os.geteuid() == 0 else ["root"]
    lacks += [name for name in _PROGRAMS if not shutil.which(name, path=os.defpath + _SYSTEM_PATH)]
    lacks += [str(CNI_PLUGINS / name) for name in ("bridge", "host-local", "loopback") if not _has_plugin(name)]
    if not BUSYBOX.exists() or b"/ld-linux" in BUSYBOX.read_bytes()[:4096]:
        lacks.append(f"a static {BUSYBOX}")
    return lacks


def _has_plugin(name: str) -> bool:
    return (CNI_PLUGINS / name).exists()


if __name__ == "__main__":
    if lacks := missing():
        sys.exit(
            f"A real kubelet cannot run here; missing: {', '.join(lacks)}. It needs root and these packages of Debian: "
            f"apt-get install --no-install-recommends {PACKAGES}. It changes nothing for good: its mounts and "
            "processes are in namespaces of their own."
        )
