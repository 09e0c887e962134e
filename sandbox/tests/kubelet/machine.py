"""A machine with a real kubelet and containerd, in namespaces of this machine, registered with a control plane.

Mounts and processes live in a mount and a PID namespace: whatever the kubelet mounts, and everything that containers
start, ends with the namespace's first process, which ends with ours. Under /var and /run it writes to memory. Outside
are only a bridge and a cgroup, both named after this tier; a start removes what a killed one left. `make test-kubelet`
gives the whole tier a network namespace too: a browser fails the requests that it has made when an interface comes.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from gpu_sandbox.control_plane import ControlPlane
from sandbox.tests.kubelet.needs import CNI_PLUGINS

START_SECONDS = 600.0

_BRIDGE = "gpu-kubelet0"
_CGROUP = "gpu-kubelet-tests"
# Of a range that is for documentation only, so that nobody's network is hidden.
_ADDRESS, _SUBNET = "198.51.100.1", "198.51.100.0/24"
_CONTAINERD = "/run/containerd/containerd.sock"

# The kubelet sets these, and a namespace has none of its own of them: it gets files to write to instead.
_SYSCTLS = (
    "kernel/keys/root_maxbytes",
    "kernel/keys/root_maxkeys",
    "kernel/panic",
    "kernel/panic_on_oops",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
)

_THEIRS = ("containerd", "containerd-shim", "kubelet", "cni", "pods", "containers", "netns")

_INIT = f"""
set -eu
cd "$1"
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/upper /run/work /run/containerd /run/sysctl
mount -t overlay -o lowerdir=/var,upperdir=/run/upper,workdir=/run/work overlay /var
for folder in containerd kubelet; do
    mkdir -p /var/lib/$folder
    mount -t tmpfs -o mode=755 tmpfs /var/lib/$folder
done
for name in {" ".join(_SYSCTLS)}; do
    copy=/run/sysctl/$(echo $name | tr / .)
    cat /proc/sys/$name > $copy
    mount --bind $copy /proc/sys/$name
done
containerd --config containerd.toml > containerd.log 2>&1 &
until [ -S {_CONTAINERD} ]; do sleep 0.1; done
./kubelet --config=kubelet.json --kubeconfig=kubeconfig --hostname-override="$2" --node-ip={_ADDRESS} \\
    > kubelet.log 2>&1 &
exec cat
"""


class KubeletMachine:
    """A context manager; inside it the Node is Ready.

    Args:
        name: The Node's name.
        control_plane: The cluster that it joins, as its administrator.
        kubelet: The kubelet's binary.
        registry: URL of the one image registry that there is.
        folder: For its configuration and logs.
    """

    def __init__(
        self,
        *,
        name: str,
        control_plane: ControlPlane,
        kubelet: Path,
        registry: str,
        folder: Path,
    ) -> None:
        self.name = name
        self._control_plane = control_plane
        self._kubelet = kubelet
        self._registry = registry
        self._folder = folder
        self._started = contextlib.ExitStack()

    def __enter__(self) -> KubeletMachine:
        with contextlib.ExitStack() as starting:
            _remove_bridge()
            _remove_cgroups()
            starting.callback(_remove_bridge)
            _add_bridge()
            starting.callback(_remove_cgroups)
            _add_cgroups()
            self._write_configuration()
            starting.callback(self._delete_node)
            starting.enter_context(self._processes())
            self._wait_until_ready()
            self._started = starting.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._started.close()

    def logs(self) -> str:
        """The ends of the kubelet's and containerd's logs."""
        texts = [(self._folder / f"{name}.log").read_text(errors="replace") for name in ("containerd", "kubelet")]
        return "\n".join(text[-3000:] for text in texts)

    @contextlib.contextmanager
    def _processes(self) -> Iterator[None]:
        namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        process = subprocess.Popen(
            [*namespaces, "sh", "-c", _INIT, "init", str(self._folder), self.name],
            # Its end tells the first process to end, however this one has ended.
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=(self._folder / "init.log").open("ab"),
            env={"PATH": f"{os.defpath}:/usr/sbin:/sbin", "HOME": "/root"},
            start_new_session=True,
        )
        try:
            self._process = process
            yield
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(300)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                init = (self._folder / "init.log").read_text()
                raise AssertionError(f"the kubelet's node is not Ready\n{init}\n{self.logs()}")
            time.sleep(0.1)

    def _is_ready(self) -> bool:
        status, node = self._control_plane.request("GET", f"/api/v1/nodes/{self.name}")
        conditions = node["status"].get("conditions", []) if status == 200 else []
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def _delete_node(self) -> None:
        self._control_plane.request("DELETE", f"/api/v1/nodes/{self.name}")

    # What it is told

    def _write_configuration(self) -> None:
        (self._folder / "kubelet").symlink_to(self._kubelet)
        (self._folder / "kubeconfig").symlink_to(self._control_plane.kubeconfig)
        authority = self._folder / "ca.crt"
        authority.write_bytes(base64.b64decode(self._control_plane.ca_data))
        (self._folder / "kubelet.json").write_text(json.dumps(_kubelet_configuration(authority)))
        (self._folder / "containerd.toml").write_text(_containerd_configuration(self._folder))
        network = self._folder / "cni"
        network.mkdir()
        (network / "10-bridge.conflist").write_text(json.dumps(_NETWORK))
        hosts = self._folder / "registries" / "_default"
        hosts.mkdir(parents=True)
        (hosts / "hosts.toml").write_text(f'server = "{self._registry}"\n[host."{self._registry}"]\n')


_NETWORK = {
    "cniVersion": "0.4.0",
    "name": _BRIDGE,
    "plugins": [
        {
            "type": "bridge",
            "bridge": _BRIDGE,
            # No gateway and no masquerading: those would change this machine's routing.
            "ipam": {"type": "host-local", "dataDir": "/run/cni", "ranges": [[{"subnet": _SUBNET}]]},
        }
    ],
}


def _kubelet_configuration(authority: Path) -> dict[str, Any]:
    with socket.create_server((_ADDRESS, 0)) as probe:
        port = probe.getsockname()[1]
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": _ADDRESS,
        "port": port,
        "healthzPort": 0,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": False},
            "x509": {"clientCAFile": str(authority)},
        },
        "authorization": {"mode": "AlwaysAllow"},
        "containerRuntimeEndpoint": f"unix://{_CONTAINERD}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{_CGROUP}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "oomScoreAdj": 0,
        "clusterDomain": "cluster.local",
        "clusterDNS": [_ADDRESS],  # nobody answers; without one each pod gets an event about it
        "resolvConf": "",
        # How full this machine's disks are is none of the tests' business.
        "evictionHard": {"nodefs.available": "1Mi", "imagefs.available": "1Mi", "memory.available": "1Mi"},
        "imageGCHighThresholdPercent": 100,
        "eventRecordQPS": 0,
    }


def _containerd_configuration(folder: Path) -> str:
    return f"""
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "pause:1"
  # Lowering oom_score_adj is refused in many containers and virtual machines, where runc then fails.
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI_PLUGINS}"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{folder}/registries"
[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"
"""


def traces() -> set[str]:
    """What a kubelet and containerd could leave on this machine, as paths and lines of text."""
    cgroups = {
        str(root / name) for root in _hierarchies() for name in os.listdir(root) if name in (_CGROUP, "kubepods")
    }
    folders = {f"/{folder}/{name}" for folder in ("var/lib", "var/log", "run") for name in os.listdir(f"/{folder}")}
    sysctls = {f"{name} {Path('/proc/sys', name).read_text()}" for name in (*_SYSCTLS, "net/ipv4/ip_forward")}
    return {
        *cgroups,
        *(path for path in folders if path.rpartition("/")[2] in _THEIRS),
        *sysctls,
        *(f"link {name}" for name in os.listdir("/sys/class/net") if name.startswith(("veth", _BRIDGE))),
        *Path("/proc/mounts").read_text().splitlines(),
        *(f"process {name}" for name in _programs() if name in _THEIRS),
    }


def _programs() -> list[str]:
    names = []
    for file in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):  # it has ended
            names.append(file.read_text().strip())
    return names


def _add_bridge() -> None:
    _ip("link", "add", _BRIDGE, "type", "bridge")
    _ip("address", "add", f"{_ADDRESS}/24", "dev", _BRIDGE)
    _ip("link", "set", _BRIDGE, "up")


def _remove_bridge() -> None:
    if _BRIDGE in (name for _, name in socket.if_nameindex()):
        _ip("link", "delete", _BRIDGE)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _hierarchies() -> list[Path]:
    """The roots of cgroups: one of version 2, or many of version 1, to which runc adds an unused one of version 2."""
    with open("/proc/mounts") as file:
        mounts = [line.split() for line in file]
    return [Path(mount[1]) for mount in mounts if mount[2] in ("cgroup", "cgroup2")]


def _add_cgroups() -> None:
    for root in _hierarchies():
        (root / _CGROUP).mkdir(exist_ok=True)


def _remove_cgroups() -> None:
    for root in _hierarchies():
        for folder, _, _ in os.walk(root / _CGROUP, topdown=False):
            _remove_cgroup(Path(folder))


def _remove_cgroup(folder: Path) -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            return folder.rmdir()
        except OSError:
            # The kernel takes a moment to forget the processes that were in it.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
