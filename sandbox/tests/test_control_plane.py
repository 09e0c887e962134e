"""The control plane is real, is reached by its own CA only, and leaves nothing behind."""

from __future__ import annotations

import base64
import json
import os
import socket
import ssl
import subprocess
import sys
import textwrap
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import kubernetes
import psutil
import pytest
from kubernetes import client, config

from gpu_sandbox.authenticator import Authenticator
from gpu_sandbox.aws import Identity
from gpu_sandbox.control_plane import ControlPlane
from gpu_sandbox.errors import ComponentFailed

CACHE_TTL = 1.0
# The API server keeps every token that was good for ten seconds, in a cache without a setting. By default the webhook's
# cache would keep it for two minutes.
FORGOTTEN = 90.0


@pytest.fixture
def core(control_plane: ControlPlane) -> Iterator[client.CoreV1Api]:
    with config.new_client_from_config(str(control_plane.kubeconfig)) as api:
        yield client.CoreV1Api(api)


def until(
    condition: Callable[[], bool], *, what: str, there_is: Callable[[], object] = lambda: "", seconds: float = 120.0
) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not in {seconds} s: {what} {there_is()}"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):  # the latter between open and read
        return False


def test_is_the_kubernetes_that_was_compiled(control_plane: ControlPlane) -> None:
    assert control_plane.version == "v1.36.3"
    assert control_plane.components() == dict.fromkeys(
        ["etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager"], True
    )


def test_starts_in_time(binary: Path, tmp_path: Path) -> None:
    """In CPU time: what else the machine has to do costs only the other."""
    control_plane = ControlPlane(binary=binary, data_dir=tmp_path)
    control_plane.start()
    times = [psutil.Process(pid).cpu_times() for pid in control_plane.pids().values()]
    control_plane.stop()
    assert sum(each.user + each.system for each in times) < 30


def test_clients_verify_its_certificate(control_plane: ControlPlane) -> None:
    kubeconfig = json.loads(control_plane.kubeconfig.read_text())
    cluster = kubeconfig["clusters"][0]["cluster"]
    assert cluster.keys() == {"server", "certificate-authority-data"}

    ours = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    with urllib.request.urlopen(f"{control_plane.server}/readyz", context=ours) as reply:
        assert reply.read() == b"ok"
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        urllib.request.urlopen(f"{control_plane.server}/readyz", context=ssl.create_default_context())


def test_secrets_are_the_owners_alone(control_plane: ControlPlane) -> None:
    folder = control_plane.kubeconfig.parent
    secret = [*folder.glob("pki/*.key"), *folder.glob("pki/*.kubeconfig"), control_plane.kubeconfig]
    assert len(secret) >= 6
    assert {oct(path.stat().st_mode & 0o777) for path in secret} == {"0o600"}
    assert {oct(path.stat().st_mode & 0o777) for path in (folder, folder / "pki")} == {"0o700"}


def test_nothing_but_the_api_server_listens_on_the_network(control_plane: ControlPlane) -> None:
    folders = [Path(f"/proc/{pid}/fd") for pid in control_plane.pids().values()]
    inodes = {target for folder in folders for link in folder.iterdir() if (target := target_of(link))}
    listening = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                listening.add(int(fields[1].split(":")[1], 16))
    assert listening == {int(control_plane.server.rsplit(":", 1)[1])}


def target_of(link: Path) -> str:
    """What a file descriptor is open on; empty if it is closed by now."""
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return ""


def test_strangers_may_ask_for_health_only(control_plane: ControlPlane) -> None:
    assert anonymous(control_plane, "/livez") == 200
    assert anonymous(control_plane, "/api/v1/pods") == 403


def test_a_foreign_token_is_401(control_plane: ControlPlane) -> None:
    assert anonymous(control_plane, "/api/v1/pods", token="k8s-aws-v1.bm90aGluZw") == 401


def test_rbac_is_on(core: client.CoreV1Api, control_plane: ControlPlane) -> None:
    token = core.create_namespaced_service_account_token(
        "default", "default", client.AuthenticationV1TokenRequest(spec={"expirationSeconds": 600})
    ).status.token
    assert anonymous(control_plane, "/api/v1/namespaces/default/pods", token=token) == 403
    assert anonymous(control_plane, "/apis", token=token) == 200


def test_service_account_admission_is_on(core: client.CoreV1Api) -> None:
    container = client.V1Container(name="main", image="busybox")
    pod = core.create_namespaced_pod(
        "default",
        client.V1Pod(
            metadata=client.V1ObjectMeta(generate_name="admission-"),
            spec=client.V1PodSpec(containers=[container]),
        ),
    )
    core.delete_namespaced_pod(pod.metadata.name, "default", grace_period_seconds=0)
    assert pod.spec.service_account_name == "default"
    mounts = {mount.mount_path for mount in pod.spec.containers[0].volume_mounts}
    assert mounts == {"/var/run/secrets/kubernetes.io/serviceaccount"}


def test_scheduler_and_controllers_work(control_plane: ControlPlane, core: client.CoreV1Api) -> None:
    """A Job becomes a pod, and the scheduler binds it to a Node (no agent keeps it: it is soon tainted)."""
    node = client.V1Node(
        metadata=client.V1ObjectMeta(name="lonely", labels={"role": "lonely"}),
        status=client.V1NodeStatus(
            allocatable={"cpu": "4", "memory": "8Gi", "pods": "10"},
            capacity={"cpu": "4", "memory": "8Gi", "pods": "10"},
            conditions=[client.V1NodeCondition(type="Ready", status="True")],
        ),
    )
    core.create_node(node)
    batch = client.BatchV1Api(core.api_client)
    container = client.V1Container(name="main", image="busybox")
    template = client.V1PodTemplateSpec(
        spec=client.V1PodSpec(
            containers=[container],
            node_selector={"role": "lonely"},
            tolerations=[client.V1Toleration(operator="Exists")],
            restart_policy="Never",
            termination_grace_period_seconds=0,
        )
    )
    batch.create_namespaced_job(
        "default", client.V1Job(metadata=client.V1ObjectMeta(name="job"), spec=client.V1JobSpec(template=template))
    )

    def pods() -> list[client.V1Pod]:
        return list(core.list_namespaced_pod("default", label_selector="job-name=job").items)

    def there_is() -> object:
        events = [event.message for event in core.list_namespaced_event("default").items]
        return core.read_node("lonely").spec.taints, [pod.status for pod in pods()], events

    def bound() -> bool:
        return [pod.spec.node_name for pod in pods()] == ["lonely"]

    until(bound, what="the Job's pod on the Node", there_is=there_is)
    batch.delete_namespaced_job("job", "default", propagation_policy="Background")
    core.delete_node("lonely")


def test_restart_of_the_api_server_keeps_port_and_objects(
    binary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control_plane = ControlPlane(binary=binary, data_dir=tmp_path)
    control_plane.start()
    try:
        config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kept"}}
        control_plane.request("POST", "/api/v1/namespaces/default/configmaps", config_map)
        before = control_plane.pids()
        away: list[bool] = []

        def left_down(seconds: float) -> None:
            away.append(refuses(control_plane))
            time.sleep(min(seconds, 0.05))

        with monkeypatch.context() as patch:
            patch.setattr(control_plane._stopping, "wait", left_down)
            control_plane.restart_apiserver(1.0)
        assert away[0]
        assert control_plane.request("GET", "/api/v1/namespaces/default/configmaps/kept")[0] == 200
        after = control_plane.pids()
        assert before.pop("kube-apiserver") != after.pop("kube-apiserver")
        assert before == after
    finally:
        control_plane.stop()


def test_two_side_by_side_know_nothing_of_each_other(control_plane: ControlPlane, binary: Path, tmp_path: Path) -> None:
    other = ControlPlane(binary=binary, data_dir=tmp_path)
    other.start()
    try:
        other.request("POST", "/api/v1/namespaces", {"metadata": {"name": "of-the-other"}})
        assert other.request("GET", "/api/v1/namespaces/of-the-other")[0] == 200
        assert control_plane.request("GET", "/api/v1/namespaces/of-the-other")[0] == 404
        assert anonymous(control_plane, "/livez", ca_of=control_plane) == 200
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            anonymous(control_plane, "/livez", ca_of=other)
    finally:
        other.stop()


def test_a_component_that_cannot_start_is_named_with_its_log(binary: Path, tmp_path: Path) -> None:
    (tmp_path / "etcd").write_text("in the way of etcd's data folder")
    control_plane = ControlPlane(binary=binary, data_dir=tmp_path)
    with pytest.raises(ComponentFailed, match=r"(?s)etcd ended.*not a directory"):
        control_plane.start()
    assert control_plane.pids() == {}


def test_stop_leaves_no_process(binary: Path, tmp_path: Path) -> None:
    control_plane = ControlPlane(binary=binary, data_dir=tmp_path)
    control_plane.start()
    pids = control_plane.pids().values()
    control_plane.stop()
    assert [pid for pid in pids if alive(pid)] == []
    control_plane.stop()


def test_kill_of_its_process_leaves_no_process(binary: Path, tmp_path: Path) -> None:
    """Started in a thread that has ended since, as the kernel takes the forking thread for the parent."""
    program = f"""
        import sys, threading, time, pathlib
        from gpu_sandbox.control_plane import ControlPlane
        one = ControlPlane(binary=pathlib.Path({str(binary)!r}), data_dir=pathlib.Path({str(tmp_path)!r}))
        starting = threading.Thread(target=one.start)
        starting.start()
        starting.join()
        print(*one.pids().values(), flush=True)
        time.sleep(600)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    with process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        running = [pid for pid in pids if alive(pid)]
        process.kill()
    assert len(running) == 4
    until(lambda: not any(map(alive, pids)), what="the components' end")


# `k8s-aws-v1.` tokens through the webhook; what AWS says of them is said by the test


@pytest.fixture(scope="module")
def known() -> dict[str, str]:
    return {}


@pytest.fixture(scope="module")
def authenticator(known: dict[str, str]) -> Iterator[Authenticator]:
    def identify(token: str) -> Identity | None:
        arn = known.get(token)
        return Identity(arn=arn, account_id="123456789012", user_id="AIDA") if arn else None

    authenticator = Authenticator(identify)
    authenticator.start()
    yield authenticator
    authenticator.stop()


@pytest.fixture(scope="module")
def cluster(
    authenticator: Authenticator, binary: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    control_plane = ControlPlane(
        binary=binary,
        data_dir=tmp_path_factory.mktemp("tokens"),
        token_webhook_url=authenticator.url,
        token_cache_ttl=CACHE_TTL,
    )
    control_plane.start()
    yield control_plane
    control_plane.stop()


def test_the_account_is_administrator(cluster: ControlPlane, known: dict[str, str]) -> None:
    known["k8s-aws-v1.admin"] = "arn:aws:iam::123456789012:user/admin"
    assert anonymous(cluster, "/api/v1/nodes", token="k8s-aws-v1.admin") == 200


def test_an_access_entry_gives_its_groups_only(
    cluster: ControlPlane, known: dict[str, str], authenticator: Authenticator
) -> None:
    arn = "arn:aws:iam::123456789012:role/airflow"
    authenticator.access_entries[arn] = ["gpu-scalers"]
    known["k8s-aws-v1.role"] = arn
    assert anonymous(cluster, "/api/v1/nodes", token="k8s-aws-v1.role") == 403


def test_a_token_that_expires_is_refused_once_the_cache_has_forgotten_it(
    cluster: ControlPlane, known: dict[str, str]
) -> None:
    known["k8s-aws-v1.short"] = "arn:aws:iam::123456789012:user/admin"
    assert anonymous(cluster, "/api/v1/nodes", token="k8s-aws-v1.short") == 200
    del known["k8s-aws-v1.short"]
    until(
        lambda: anonymous(cluster, "/api/v1/nodes", token="k8s-aws-v1.short") == 401,
        seconds=FORGOTTEN,
        what="401 for an expired token",
    )


def test_an_unknown_token_is_401(cluster: ControlPlane) -> None:
    assert anonymous(cluster, "/api/v1/nodes", token="k8s-aws-v1.never-seen") == 401


def test_the_webhook_answers_without_delay(cluster: ControlPlane, known: dict[str, str]) -> None:
    """Headers and body in two writes cost 40 ms on loopback, each time; a busy machine lets some answers through."""
    tokens = [f"k8s-aws-v1.fresh{number}" for number in range(200)]
    known.update(dict.fromkeys(tokens, "arn:aws:iam::123456789012:user/admin"))
    with config.new_client_from_config(str(cluster.kubeconfig)) as api:
        reviews = kubernetes.client.AuthenticationV1Api(api)

        def seconds_for(token: str) -> float:
            started = time.monotonic()
            review = reviews.create_token_review(client.V1TokenReview(spec={"token": token}))
            took = time.monotonic() - started
            assert review.status.authenticated
            return took

        assert any(seconds_for(token) < 0.03 for token in tokens)


def anonymous(control_plane: ControlPlane, path: str, *, token: str = "", ca_of: ControlPlane | None = None) -> int:
    """The status of a GET without a client certificate."""
    authority = base64.b64decode((ca_of or control_plane).ca_data).decode()
    request = urllib.request.Request(
        control_plane.server + path, headers={"Authorization": f"Bearer {token}"} if token else {}
    )
    try:
        with urllib.request.urlopen(request, context=ssl.create_default_context(cadata=authority)) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def refuses(control_plane: ControlPlane) -> bool:
    port = int(control_plane.server.rsplit(":", 1)[1])
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0
