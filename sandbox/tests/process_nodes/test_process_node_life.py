"""A pod's life on a process node, as `kubectl` would show it."""

from __future__ import annotations

import time

import pytest
from kubernetes import client

from sandbox.tests.process_nodes.conftest import Cluster
from tests.sandbox.running import eventually


def test_a_pod_runs_to_completion_and_is_told_about_as_by_a_kubelet(cluster: Cluster) -> None:
    name = cluster.sh("echo done")
    end = cluster.end(name)
    pod = cluster.wait(name, "Succeeded")
    assert (end.exit_code, end.reason) == (0, "Completed")
    assert end.started_at <= end.finished_at
    assert end.container_id.startswith("containerd://")
    assert pod.status.container_statuses[0].image_id.startswith("docker.io/library/busybox@sha256:")
    assert pod.status.host_ip == "127.0.0.1"
    assert pod.status.pod_ip.startswith("127.")
    conditions = {c.type: (c.status, c.reason) for c in pod.status.conditions}
    assert conditions["Ready"] == ("False", "PodCompleted")
    assert conditions["Initialized"] == ("True", "PodCompleted")
    assert conditions["PodScheduled"][0] == "True"
    cluster.wait_event(name, "Started")
    reasons = [reason for _, reason, _ in cluster.events(name)]
    assert [r for r in reasons if r != "Pulling"] == ["Pulled", "Created", "Started"]


@pytest.mark.parametrize(("script", "code"), [("exit 3", 3), ("sleep 9 & kill -9 $!; wait $!", 137)])
def test_exit_codes_are_those_of_a_container_runtime(cluster: Cluster, script: str, code: int) -> None:
    end = cluster.end(cluster.sh(script + "; exit $?"))
    assert (end.exit_code, end.reason) == (code, "Error")


def test_a_command_that_does_not_exist_is_a_start_error(cluster: Cluster) -> None:
    end = cluster.end(cluster.pod("no-such-program"))
    assert (end.exit_code, end.reason) == (128, "StartError")
    assert 'exec: "no-such-program": executable file not found in $PATH' in end.message


def test_a_running_pod_is_ready(cluster: Cluster) -> None:
    name = cluster.sh("sleep 600")
    pod = cluster.wait(name, "Running")
    assert pod.status.container_statuses[0].ready
    assert pod.status.container_statuses[0].started
    assert {c.type: c.status for c in pod.status.conditions}["Ready"] == "True"


def test_on_failure_restarts_at_once_and_then_backs_off(cluster: Cluster) -> None:
    name = cluster.sh("echo try; exit 1", restartPolicy="OnFailure")
    pod = cluster.seen(name, lambda pod: _waits(pod, "CrashLoopBackOff"))[-1]
    (status,) = pod.status.container_statuses
    assert status.state.waiting.message.startswith("back-off 10s restarting failed container=main pod=")
    assert status.restart_count == 1
    assert status.last_state.terminated.exit_code == 1
    assert pod.status.phase == "Running"
    assert cluster.wait_event(name, "BackOff").startswith("Back-off restarting failed container main in pod")
    assert cluster.logs(name, previous=True) == "try\n"


def _waits(pod: client.V1Pod, reason: str) -> bool:
    """Whether the first container does, for this reason."""
    states = [status.state.waiting for status in pod.status.container_statuses or ()]
    return bool(states and states[0]) and states[0].reason == reason


def test_on_failure_is_content_with_success(cluster: Cluster) -> None:
    name = cluster.sh(
        "test -e /state/seen && exit 0; touch /state/seen; exit 1",
        restartPolicy="OnFailure",
        volumes=[{"name": "state", "emptyDir": {}}],
        volumeMounts=[{"name": "state", "mountPath": "/state"}],
    )
    cluster.wait(name, "Succeeded")
    assert cluster.read(name).status.container_statuses[0].restart_count == 1


def test_init_containers_run_in_order_before_the_others(cluster: Cluster) -> None:
    mount = {"volumeMounts": [{"name": "v", "mountPath": "/v"}], "image": "busybox:1"}
    name = cluster.sh(
        "cat /v/order",
        volumes=[{"name": "v", "emptyDir": {}}],
        volumeMounts=mount["volumeMounts"],
        initContainers=[
            {"name": "one", "command": ["sh", "-c", "sleep 0.5; echo one >> /v/order"], **mount},
            {"name": "two", "command": ["sh", "-c", "echo two >> /v/order"], **mount},
        ],
    )
    pod = cluster.seen(name, lambda pod: pod.status.container_statuses)[-1]
    assert _waits(pod, "PodInitializing")
    cluster.wait(name, "Succeeded")
    assert cluster.logs(name) == "one\ntwo\n"
    assert cluster.logs(name, container="one") == ""
    assert [s.ready for s in cluster.read(name).status.init_container_statuses] == [True, True]


def test_a_failed_init_container_fails_the_pod(cluster: Cluster) -> None:
    init = {"name": "init", "image": "busybox:1", "command": ["sh", "-c", "exit 7"]}
    name = cluster.sh("echo never", initContainers=[init])
    pod = cluster.wait(name, "Failed")
    assert pod.status.init_container_statuses[0].state.terminated.exit_code == 7
    assert pod.status.container_statuses[0].state.terminated is None


def test_a_sidecar_starts_before_and_ends_after_the_main_container(cluster: Cluster) -> None:
    sidecar = {
        "name": "side",
        "image": "busybox:1",
        "restartPolicy": "Always",
        "command": ["sh", "-c", "trap 'echo bye; exit 0' TERM; echo up; touch /v/up; while :; do sleep 0.1; done"],
    }
    mount = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    name = cluster.sh(
        "until [ -e /v/up ]; do sleep 0.1; done",
        volumes=[{"name": "v", "emptyDir": {}}],
        initContainers=[{**sidecar, **mount}],
        **mount,
    )
    cluster.wait(name, "Succeeded")
    assert cluster.logs(name, container="side") == "up\nbye\n"


def test_a_pod_deleted_while_its_sidecar_lingers(cluster: Cluster) -> None:
    sidecar = {
        "name": "side",
        "image": "busybox:1",
        "restartPolicy": "Always",
        "command": ["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"],
    }
    name = cluster.sh("true", initContainers=[sidecar], terminationGracePeriodSeconds=600)
    cluster.until_container(name, lambda s: s.state.terminated, "the main container's end")
    cluster.delete(name, grace_period_seconds=1)
    cluster.wait_gone(name)


def test_a_pod_is_over_when_all_its_containers_are(cluster: Cluster) -> None:
    until_told = "until [ -e /tmp/end ]; do sleep 0.1; done"
    two = [
        {"name": "good", "image": "busybox:1", "command": ["sleep", "0.5"]},
        {"name": "bad", "image": "busybox:1", "command": ["sh", "-c", f"{until_told}; exit 2"]},
    ]
    name = cluster.pod(containers=two)
    pod = cluster.until_container(name, lambda s: s.state.terminated, "the first end")
    assert pod.status.phase == "Running"
    cluster.exec(name, "touch", "/tmp/end", container="bad")
    cluster.wait(name, "Failed")


def test_active_deadline(cluster: Cluster) -> None:
    began = time.monotonic()
    name = cluster.sh("trap 'exit 0' TERM; while :; do sleep 0.1; done", activeDeadlineSeconds=1)
    pod = cluster.wait(name, "Failed")
    assert time.monotonic() - began > 0.5
    assert pod.status.reason == "DeadlineExceeded"
    assert pod.status.message == "Pod was active on the node longer than the specified deadline"


def test_delete_sends_sigterm_and_waits(cluster: Cluster) -> None:
    name = cluster.sh("trap 'sleep 0.5; exit 0' TERM; echo up; while :; do sleep 0.05; done")
    cluster.wait(name, "Running")
    cluster.until(name, lambda _: "up" in cluster.logs(name), "its first line")
    began = time.monotonic()
    cluster.delete(name)
    cluster.wait_gone(name)
    assert time.monotonic() - began > 0.4
    assert cluster.wait_event(name, "Killing") == "Stopping container main"


def test_one_that_ignores_sigterm_is_killed_after_its_grace_period(cluster: Cluster) -> None:
    name = cluster.sh("trap '' TERM; echo up; while :; do sleep 0.1; done", terminationGracePeriodSeconds=1)
    cluster.wait(name, "Running")
    cluster.until(name, lambda _: "up" in cluster.logs(name), "its first line")
    began = time.monotonic()
    cluster.delete(name)
    cluster.wait_gone(name)
    assert 0.9 < time.monotonic() - began < 25, "by default it would be 30"


def test_a_second_delete_shortens_the_grace_period(cluster: Cluster) -> None:
    name = cluster.sh("trap '' TERM; echo up; while :; do sleep 0.1; done", terminationGracePeriodSeconds=600)
    cluster.wait(name, "Running")
    cluster.until(name, lambda _: "up" in cluster.logs(name), "its first line")
    cluster.delete(name)
    cluster.delete(name, grace_period_seconds=1)
    cluster.wait_gone(name)


def test_a_pod_deleted_by_force_ends_though_its_object_is_gone(cluster: Cluster) -> None:
    name = cluster.sh("trap '' TERM; while :; do echo on | tee -a /host/beat; sleep 0.1; done", **_host_folder())
    cluster.wait(name, "Running")
    cluster.until(name, lambda _: "on" in cluster.logs(name), "its first line")
    cluster.delete(name, grace_period_seconds=0)
    cluster.wait_gone(name)
    count = "wc -l < /host/beat; sleep 0.6; wc -l < /host/beat"

    def has_ended() -> bool:
        before, after = cluster.output(count, **_host_folder()).split()
        return before == after

    eventually(has_ended)
    assert int(cluster.output("wc -l < /host/beat; rm /host/beat", **_host_folder())) > 0


def _host_folder() -> dict[str, object]:
    return {
        "volumes": [{"name": "h", "hostPath": {"path": "/no-such/process-node-test", "type": "DirectoryOrCreate"}}],
        "volumeMounts": [{"name": "h", "mountPath": "/host"}],
    }


def test_pre_stop_runs_before_sigterm(cluster: Cluster) -> None:
    name = cluster.sh(
        "trap 'echo term; sleep 0.2; exit 0' TERM; while :; do sleep 0.05; done",
        lifecycle={"preStop": {"exec": {"command": ["sh", "-c", "echo pre-stop > /proc/1/fd/1"]}}},
    )
    cluster.wait(name, "Running")
    follower = cluster.core.read_namespaced_pod_log(name, cluster.namespace, follow=True, _preload_content=False)
    cluster.delete(name)
    assert follower.read().decode() == "pre-stop\nterm\n"


def test_a_failed_post_start_hook_ends_the_container(cluster: Cluster) -> None:
    hook = {"postStart": {"exec": {"command": ["sh", "-c", "until [ -e /tmp/up ]; do sleep 0.1; done; false"]}}}
    end = cluster.end(cluster.sh("trap 'exit 9' TERM; touch /tmp/up; while :; do sleep 0.1; done", lifecycle=hook))
    assert end.exit_code == 9


def test_termination_messages(cluster: Cluster) -> None:
    assert cluster.end(cluster.sh("echo -n bye > /dev/termination-log; exit 1")).message == "bye"
    fallback = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    assert cluster.end(cluster.sh("echo last words; exit 1", **fallback)).message == "last words\n"
    assert cluster.end(cluster.sh("echo last words", **fallback)).message is None
    elsewhere = {"terminationMessagePath": "/tmp/message"}
    assert cluster.end(cluster.sh("echo -n there > /tmp/message", **elsewhere)).message == "there"


def test_out_of_memory(cluster: Cluster) -> None:
    hog = "import time; b = bytearray(200 << 20); b[::4096] = b'x' * len(b[::4096]); time.sleep(600)"
    name = cluster.pod(
        "python", "-c", hog, image="python:3.11", resources={"limits": {"memory": "100Mi"}, "requests": {}}
    )
    end = cluster.end(name)
    assert (end.exit_code, end.reason) == (137, "OOMKilled")


def test_memory_below_the_limit_is_fine(cluster: Cluster) -> None:
    modest = "import os, time; b = bytearray(60 << 20); os.fork(); time.sleep(1)"
    name = cluster.pod("python", "-c", modest, image="python:3.11", resources={"limits": {"memory": "100Mi"}})
    assert cluster.end(name).exit_code == 0


def test_readiness_and_liveness_probes(cluster: Cluster) -> None:
    name = cluster.sh(
        "sleep 0.5; touch /tmp/ready; trap 'exit 0' TERM; while :; do sleep 0.1; done",
        restartPolicy="Always",
        readinessProbe={"exec": {"command": ["test", "-e", "/tmp/ready"]}, "periodSeconds": 1},
        livenessProbe={"exec": {"command": ["false"]}, "periodSeconds": 1, "initialDelaySeconds": 2},
    )
    started = cluster.seen(name, lambda pod: pod.status.phase == "Running")[-1]
    assert not started.status.container_statuses[0].ready
    cluster.seen(name, lambda pod: any(status.ready for status in pod.status.container_statuses or ()))
    cluster.until_container(name, lambda s: s.restart_count >= 1, "a restart by liveness")
    assert cluster.wait_event(name, "Unhealthy").startswith(("Readiness probe failed", "Liveness probe failed"))


def test_an_http_probe(cluster: Cluster) -> None:
    server = (
        "import http.server, socket\n"
        "s = http.server.ThreadingHTTPServer(('127.0.0.1', 18231), http.server.SimpleHTTPRequestHandler)\n"
        "s.serve_forever()"
    )
    probe = {"httpGet": {"port": 18231, "path": "/"}, "periodSeconds": 1}
    name = cluster.pod("python", "-c", server, image="python:3.11", startupProbe=probe)
    pod = cluster.until_container(name, lambda s: s.ready, "readiness")
    assert pod.status.container_statuses[0].started


def test_a_hundred_pods_at_once(cluster: Cluster) -> None:
    names = [cluster.pod("true") for _ in range(100)]
    for name in names:
        cluster.wait(name, "Succeeded")
