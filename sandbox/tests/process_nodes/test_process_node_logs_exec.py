"""kubectl logs and exec through the API server, and what Airflow does with them."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime

import pytest
from airflow.providers.cncf.kubernetes.utils.pod_manager import PodManager
from airflow.providers.cncf.kubernetes.utils.xcom_sidecar import add_xcom_sidecar
from kubernetes import client, stream

from sandbox.tests.process_nodes.conftest import Cluster
from tests.sandbox.running import eventually


def test_log_options(cluster: Cluster) -> None:
    name = cluster.sh("echo one; echo two >&2; echo three; printf 'no end'")
    cluster.wait(name, "Succeeded")
    assert sorted(cluster.logs(name).splitlines()) == ["no end", "one", "three", "two"]
    assert cluster.logs(name, tail_lines=1) == "no end"
    assert cluster.logs(name, limit_bytes=3) in ("one", "two")
    stamped = cluster.logs(name, timestamps=True).splitlines()[0]
    moment = datetime.fromisoformat(stamped.split(" ")[0][:26]).replace(tzinfo=UTC)
    assert abs((datetime.now(UTC) - moment).total_seconds()) < 300
    assert cluster.logs(name, since_seconds=3600) == cluster.logs(name)


def test_since_seconds(cluster: Cluster) -> None:
    name = cluster.sh("echo old; sleep 5; echo new")
    cluster.wait(name, "Succeeded")
    stamp = cluster.logs(name, timestamps=True, tail_lines=1).split()[0]

    def since_between_both() -> str:
        """Of a question that is late, both lines are too old."""
        age = datetime.now(UTC) - datetime.fromisoformat(f"{stamp[:19]}+00:00")
        return cluster.logs(name, since_seconds=int(age.total_seconds()) + 3)

    assert eventually(since_between_both) == "new\n"


def test_follow_delivers_lines_as_they_come_and_ends_with_the_container(cluster: Cluster) -> None:
    name = cluster.sh("echo line 1; while [ ! -e /tmp/read ]; do sleep 0.05; done; echo line 2")
    cluster.wait(name, "Running")
    lines = iter(cluster.core.read_namespaced_pod_log(name, cluster.namespace, follow=True, _preload_content=False))
    assert next(lines) == b"line 1\n"
    cluster.exec(name, "touch", "/tmp/read")
    assert list(lines) == [b"line 2\n"]


def test_logs_of_a_container_that_waits(cluster: Cluster) -> None:
    name = cluster.pod("true", image="nothing:1")
    cluster.waiting(name, "ImagePullBackOff")
    with pytest.raises(client.ApiException) as caught:
        cluster.core.read_namespaced_pod_log(name, cluster.namespace)
    assert caught.value.status == 400
    assert f'container \\"main\\" in pod \\"{name}\\" is waiting to start: ImagePullBackOff' in str(caught.value.body)
    with pytest.raises(client.ApiException) as caught:
        cluster.core.read_namespaced_pod_log(name, cluster.namespace, previous=True)
    assert "previous terminated container" in str(caught.value.body)


def test_a_large_log_comes_whole(cluster: Cluster) -> None:
    name = cluster.pod("python", "-c", "for i in range(100000): print(f'{i:>24}')", image="python:3.11")
    cluster.wait(name, "Succeeded")
    assert len(cluster.logs(name)) == 100000 * 25
    assert cluster.logs(name, tail_lines=2).split() == ["99998", "99999"]


@pytest.fixture
def sleeper(cluster: Cluster) -> str:
    name = cluster.sh(
        "export HERE=1; trap 'exit 0' TERM; while :; do sleep 0.1; done", env=[{"name": "A", "value": "b"}]
    )
    cluster.wait(name, "Running")
    return name


def test_exec_prints_and_fails_as_kubectl_shows_it(cluster: Cluster, sleeper: str) -> None:
    shown = cluster.exec(sleeper, "sh", "-c", "echo err >&2; echo $A; uname -n; pwd").splitlines()
    assert sorted(shown) == sorted(["err", "b", sleeper, "/"])
    call = cluster.core.connect_get_namespaced_pod_exec
    failed = stream.stream(
        call, sleeper, cluster.namespace, command=["sh", "-c", "exit 7"], stdout=True, _preload_content=False
    )
    failed.run_forever(timeout=120)
    assert failed.returncode == 7
    unknown = stream.stream(
        call, sleeper, cluster.namespace, command=["no-such"], stdout=True, stderr=True, _preload_content=False
    )
    unknown.run_forever(timeout=120)
    assert "executable file not found" in json.loads(unknown.read_channel(3))["message"]


def test_exec_reads_its_input(cluster: Cluster, sleeper: str) -> None:
    call = cluster.core.connect_get_namespaced_pod_exec
    session = stream.stream(
        call,
        sleeper,
        cluster.namespace,
        command=["sh", "-c", "read line; echo got $line"],
        stdin=True,
        stdout=True,
        _preload_content=False,
    )
    session.write_stdin("something\n")
    session.run_forever(timeout=120)
    assert session.read_stdout() == "got something\n"
    assert session.returncode == 0


def test_exec_with_a_terminal(cluster: Cluster, sleeper: str) -> None:
    output = cluster.exec(sleeper, "sh", "-c", "test -t 1 && echo terminal", tty=True, stderr=False)
    assert output == "terminal\r\n"


def test_exec_of_a_lot(cluster: Cluster, sleeper: str) -> None:
    assert len(cluster.exec(sleeper, "sh", "-c", "yes 0123456 | head -c 5000000")) == 5_000_000


def test_what_exec_started_ends_when_the_client_hangs_up(cluster: Cluster, sleeper: str) -> None:
    call = cluster.core.connect_get_namespaced_pod_exec
    command = ["sleep", "987"]
    session = stream.stream(call, sleeper, cluster.namespace, command=command, stdout=True, _preload_content=False)
    deadline = time.monotonic() + 120
    look = ["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]
    while "sleep 987" not in cluster.exec(sleeper, *look):
        assert time.monotonic() < deadline
    session.close()
    while "sleep 987" in cluster.exec(sleeper, *look):
        assert time.monotonic() < deadline


def test_airflows_xcom_sidecar(cluster: Cluster) -> None:
    core = cluster.core
    pod = client.V1Pod(
        metadata=client.V1ObjectMeta(name="xcom", namespace=cluster.namespace),
        spec=client.V1PodSpec(
            restart_policy="Never",
            node_selector={"role": "cpu"},
            containers=[
                client.V1Container(
                    name="base",
                    image="busybox:1",
                    command=["sh", "-c", "printf '{\"accuracy\": 0.97}' > /airflow/xcom/return.json"],
                )
            ],
        ),
    )
    pod = core.create_namespaced_pod(cluster.namespace, add_xcom_sidecar(pod))

    def base_is_done(pod: client.V1Pod) -> bool:
        states = {s.name: s.state for s in pod.status.container_statuses or ()}
        return bool(states and states["base"].terminated and states["airflow-xcom-sidecar"].running)

    cluster.until("xcom", base_is_done, "the end of base beside a running sidecar")
    manager = PodManager(kube_client=core)
    assert manager.extract_xcom(core.read_namespaced_pod("xcom", cluster.namespace)) == '{"accuracy": 0.97}'
    cluster.wait("xcom", "Succeeded")
