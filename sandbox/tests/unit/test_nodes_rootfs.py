"""Which mounts of the machine have to be laid over a container's folders again."""

from __future__ import annotations

from gpu_sandbox.nodes.rootfs import nested_mounts

MOUNTINFO = """\
22 1 8:1 / / rw - ext4 /dev/a rw
23 22 0:5 / /proc rw - proc proc rw
24 22 0:6 / /dev/shm rw - tmpfs tmpfs rw
25 22 8:2 / /home rw - ext4 /dev/b rw
26 22 8:3 / /mnt/data rw - ext4 /dev/c rw
27 26 8:4 / /mnt/data/inner rw - ext4 /dev/d rw
28 22 8:5 / /mnt/with\\040blank rw - ext4 /dev/e rw
29 22 8:6 / /tmp/x rw - tmpfs tmpfs rw
"""


def test_the_topmost_mounts_below_root_folders() -> None:
    assert nested_mounts(MOUNTINFO) == ["/mnt/data", "/mnt/with blank"]
