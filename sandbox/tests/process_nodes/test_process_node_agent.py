"""The agent itself: Nodes as a cloud's, restarts of the API server, and that nothing outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes import client

import gpu_sandbox
from gpu_sandbox.control_plane import ControlPlane
from gpu_sandbox.nodes import NamespacesForbidden, NodeAgent, NodeAgentError, NodeSpec, Taint
from sandbox.tests.process_nodes.conftest import Cluster, images


@pytest.fixture
def own_agent(control_plane: ControlPlane, app: Path, tmp_path: Path) -> Iterator[NodeAgent]:
    agent = NodeAgent(
        kubeconfig=control_plane.kubeconfig, work_dir=tmp_path / "work", images=images(app), log_file=tmp_path / "log"
    )
    agent.start()
    yield agent
    agent.stop()


def test_a_node_registers_as_a_cloud_would_have_it(own_agent: NodeAgent, core: client.CoreV1Api) -> None:
    labels = {"eks.amazonaws.com/nodegroup": "train", "topology.kubernetes.io/zone": "us-west-2a"}
    taint = Taint(key="nvidia.com/gpu", value="true", effect="NoSchedule")
    spec = NodeSpec(
        name="ip-10-0-0-1.us-west-2.compute.internal",
        labels=labels,
        taints=(taint,),
        provider_id="aws:///us-west-2a/i-0abc",
        cpus=4,
        memory_bytes=16 * 2**30,
        gpus=1,
    )
    own_agent.add_node(spec)
    try:
        node = core.read_node(spec.name)
        assert labels.items() <= node.metadata.labels.items()
        assert node.metadata.labels["kubernetes.io/hostname"] == spec.name
        assert node.spec.provider_id == spec.provider_id
        assert {(t.key, t.value, t.effect) for t in node.spec.taints} >= {("nvidia.com/gpu", "true", "NoSchedule")}
        assert node.status.allocatable == {
            "cpu": "4",
            "memory": "16Gi",
            "pods": "110",
            "ephemeral-storage": "80Gi",
        }
        assert {c.type: c.status for c in node.status.conditions}["Ready"] == "True"
        deadline = time.monotonic() + 120
        while any("not-ready" in t.key for t in core.read_node(spec.name).spec.taints):
            assert time.monotonic() < deadline, "the not-ready taint stays"
            time.sleep(0.05)
        leases = client.CoordinationV1Api(core.api_client)
        lease = leases.read_namespaced_lease(spec.name, "kube-node-lease")
        assert lease.spec.holder_identity == spec.name
        assert lease.metadata.owner_references[0].uid == node.metadata.uid
        with pytest.raises(NodeAgentError, match="there is a node"):
            own_agent.add_node(spec)
    finally:
        own_agent.remove_node(spec.name)
    assert spec.name not in [n.metadata.name for n in core.list_node().items]
    own_agent.remove_node(spec.name)


def test_a_pod_that_waited_for_its_node_runs(own_agent: NodeAgent, cluster: Cluster) -> None:
    name = cluster.sh("true", node="awaited")
    time.sleep(0.5)
    own_agent.add_node(NodeSpec(name="awaited", labels={"role": "awaited"}))
    cluster.wait(name, "Succeeded")
    own_agent.remove_node("awaited")


def test_pods_of_a_removed_node_die_at_once(own_agent: NodeAgent, cluster: Cluster) -> None:
    own_agent.add_node(NodeSpec(name="doomed", labels={"role": "doomed"}))
    token = _token()
    name = cluster.sh(f"trap '' TERM; : {token}; while :; do sleep 0.1; done", node="doomed")
    cluster.wait(name, "Running")
    _wait(lambda: _processes(token), "the pod's process")
    own_agent.remove_node("doomed")
    assert not _processes(token)
    with pytest.raises(client.ApiException):
        cluster.logs(name)


def test_a_node_that_vanishes_without_a_word_stays_in_the_api(own_agent: NodeAgent, core: client.CoreV1Api) -> None:
    own_agent.add_node(NodeSpec(name="vanished"))
    own_agent.remove_node("vanished", delete_object=False)
    assert core.read_node("vanished").metadata.name == "vanished"
    own_agent.add_node(NodeSpec(name="vanished", labels={"again": "yes"}))
    assert core.read_node("vanished").metadata.labels["again"] == "yes"
    own_agent.remove_node("vanished")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, None])
def test_nothing_outlives_the_agent(own_agent: NodeAgent, cluster: Cluster, how: signal.Signals | None) -> None:
    node = f"mortal-{how}".lower().replace(".", "-")
    own_agent.add_node(NodeSpec(name=node, labels={"role": node}))
    token = _token()
    script = f"trap '' TERM HUP INT; (setsid sh -c ': {token}; sleep 1000; :') & while : {token}; do sleep 0.1; done"
    name = cluster.sh(script, node=node)
    cluster.wait(name, "Running")
    pid = own_agent.pid
    assert pid is not None
    _wait(lambda: len(_processes(token)) >= 2, "the pod's processes")
    if how is None:
        own_agent.stop()
    else:
        os.kill(pid, how)
    _wait(lambda: not _processes(token), "the end of the pod's processes")
    _wait(lambda: not _processes(str(pid), "gpu-node"), "the end of the zygote")
    cluster.core.delete_node(node)


def test_the_agent_ends_with_its_parent(control_plane: ControlPlane, tmp_path: Path) -> None:
    script = (
        "import sys, time\nfrom pathlib import Path\n"
        "from gpu_sandbox.nodes import NodeAgent\n"
        f"a = NodeAgent(kubeconfig=Path({str(control_plane.kubeconfig)!r}), work_dir=Path({str(tmp_path / 'w')!r}), "
        f"images=[], log_file=Path({str(tmp_path / 'log')!r}))\n"
        "a.start(); print(a.pid, flush=True); time.sleep(1000)"
    )
    folder = Path(gpu_sandbox.__file__).parent.parent
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=folder) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    _wait(lambda: not Path(f"/proc/{pid}").exists(), "the end of the agent")


def test_pods_go_on_through_a_restart_of_the_api_server(cluster: Cluster, control_plane: ControlPlane) -> None:
    through = cluster.sh("until [ -e /tmp/end ]; do sleep 0.1; done; echo survived")
    cluster.wait(through, "Running")
    control_plane.restart_apiserver()
    after = cluster.sh("echo after")
    cluster.wait(after, "Succeeded")
    cluster.exec(through, "touch", "/tmp/end")
    cluster.wait(through, "Succeeded")
    assert cluster.logs(through) == "survived\n"


class _Unprivileged(NodeAgent):
    """An agent that is no administrator: what it may do it may do in a user namespace of its own.

    (CAP_SETFCAP is left to it because Linux maps UID 0 of a parent namespace for nobody else.)
    """

    def _command(self) -> list[str]:
        return ["setpriv", "--bounding-set=-all,+setfcap", "--inh-caps=-all", *super()._command()]


def test_pods_run_without_privileges(cluster: Cluster, control_plane: ControlPlane, app: Path, tmp_path: Path) -> None:
    agent = _Unprivileged(
        kubeconfig=control_plane.kubeconfig, work_dir=tmp_path / "work", images=images(app), log_file=tmp_path / "log"
    )
    agent.start()
    try:
        agent.add_node(NodeSpec(name="modest", labels={"role": "modest"}, gpus=1, device_plugin_builtin=True))
        volumes = [{"name": "m", "emptyDir": {"medium": "Memory"}}]
        mounts = [{"name": "m", "mountPath": "/etc/new/m"}]
        script = "touch /usr/x /etc/new/m/y && id -u && test ! -e /proc/99 && nvidia-smi -L | wc -l"
        script += "; until [ -e /tmp/end ]; do sleep 0.1; done"
        name = cluster.sh(script, node="modest", gpus=1, volumes=volumes, volumeMounts=mounts, image="python:3")
        cluster.wait(name, "Running")
        assert cluster.exec(name, "cat", "/proc/1/comm") == "sh\n"
        cluster.exec(name, "touch", "/tmp/end")
        cluster.wait(name, "Succeeded")
        assert cluster.logs(name) == "0\n1\n"
        assert "user namespace" in (tmp_path / "log").read_text()
        agent.remove_node("modest")
    finally:
        agent.stop()


@pytest.fixture
def somebodys_folder() -> Iterator[Path]:
    """A folder that is not the agent's, where containers see it: under /tmp they have their own."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        (Path(folder) / "kept").write_text("kept\n")
        Path(folder).chmod(0o755)
        if os.geteuid() == 0:
            os.chown(folder, 65534, 65534)
        yield Path(folder)


def test_volumes_are_mounted_in_folders_of_other_users(
    cluster: Cluster, control_plane: ControlPlane, app: Path, tmp_path: Path, somebodys_folder: Path
) -> None:
    agent = _Unprivileged(
        kubeconfig=control_plane.kubeconfig, work_dir=tmp_path / "work", images=images(app), log_file=tmp_path / "log"
    )
    agent.start()
    try:
        agent.add_node(NodeSpec(name="guest", labels={"role": "guest"}))
        mounts = [{"name": "m", "mountPath": str(somebodys_folder / "new" / "m")}]
        script = f"cd {somebodys_folder}; cat kept; touch new/m/x && ls new/m"
        name = cluster.sh(script, node="guest", volumes=[{"name": "m", "emptyDir": {}}], volumeMounts=mounts)
        cluster.wait(name, "Succeeded", "Failed")
        assert cluster.logs(name) == "kept\nx\n"
        agent.remove_node("guest")
    finally:
        agent.stop()


class _Crippled(NodeAgent):
    """An agent on a kernel that lacks something: what the kernel would say is played, what follows is not."""

    lack = ""

    def _command(self) -> list[str]:
        script = (
            "import sys\n"
            "from gpu_sandbox.nodes import agent, syscalls\n"
            f"{self.lack}\n"
            "raise SystemExit(agent.main(sys.argv[1:]))"
        )
        python, _, _, *arguments = super()._command()
        return [python, "-c", script, *arguments]


class _WithoutNamespaces(_Crippled):
    lack = (
        "def unshare(flags): raise PermissionError(1, 'unshare: Operation not permitted')\nsyscalls.unshare = unshare"
    )


class _WithoutOverlay(_Crippled):
    lack = (
        "mount = syscalls.mount\n"
        "def refuse(source, target, fstype='', flags=0, data=''):\n"
        "    if fstype == 'overlay': raise OSError(19, 'No such device')\n"
        "    mount(source, target, fstype, flags, data)\n"
        "syscalls.mount = refuse"
    )


def test_without_namespaces_there_is_a_clear_error(control_plane: ControlPlane, tmp_path: Path) -> None:
    agent = _WithoutNamespaces(
        kubeconfig=control_plane.kubeconfig, work_dir=tmp_path / "work", images=[], log_file=tmp_path / "log"
    )
    with pytest.raises(NamespacesForbidden, match="never run as bare processes"):
        agent.start()
    assert agent.pid is None


def test_without_overlays_pods_run_all_the_same(
    cluster: Cluster, control_plane: ControlPlane, app: Path, tmp_path: Path
) -> None:
    agent = _WithoutOverlay(
        kubeconfig=control_plane.kubeconfig, work_dir=tmp_path / "work", images=images(app), log_file=tmp_path / "log"
    )
    agent.start()
    try:
        agent.add_node(NodeSpec(name="plain", labels={"role": "plain"}))
        mounts = {
            "volumes": [{"name": "v", "emptyDir": {}}],
            "volumeMounts": [{"name": "v", "mountPath": "/etc/new/deep"}],
        }
        script = "touch /etc/new/deep/x /data && cat /etc/passwd > /dev/null; touch /usr/bin/x 2>&1 || echo kept"
        name = cluster.sh(script, node="plain", **mounts)
        cluster.wait(name, "Succeeded")
        assert "Read-only file system\nkept" in cluster.logs(name)
        assert not Path("/etc/new").exists()
        agent.remove_node("plain")
    finally:
        agent.stop()


def _token() -> str:
    return f"token{time.monotonic_ns()}"


def _processes(token: str, name: str = "") -> list[int]:
    """This machine's processes whose command line holds a token."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            line = (folder / "cmdline").read_bytes().decode(errors="replace")
            comm = (folder / "comm").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if token in line and name in comm:
            found.append(int(folder.name))
    return found


def _wait(condition: object, what: str, seconds: float = 120) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)
