"""What this package's operators meet on a node of four GPUs, whatever its kind: S3 in full, exec, logs, and ends.

A class for each kind of node inherits these tests, and gives them the fixtures `kubeconfig` and `node`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config, stream
from kubernetes.client import models as k8s

from airflow_gpu_provider import (
    EnsureGpuPoolOperator,
    GpuPodOperator,
    InstallDevicePluginOperator,
    KubernetesGpuPool,
    ScaleDownSensor,
    placement,
)
from airflow_gpu_provider.addons.device_plugin import PLUGIN_NAMESPACE
from airflow_gpu_provider.errors import PodDeadline, PodFailed, PodImageError, PodOutOfMemory, PodPreempted
from airflow_gpu_provider.training.wait.pull import LASTS
from sandbox.tests.node_checks import stories
from sandbox.tests.node_checks.stories import IMAGE
from tests.sandbox.running import eventually, run, run_and_act

GPUS = 4
LINES_OF_TEN_MIB = 75_200  # of 100 bytes, each with some 40 of the log's own: the last few pass the limit, as the node
# may look in the middle of what is printed
# Of this tier's stand-in for the plugin; NVIDIA's passes by what it does not know. The registry made here can have no
# image of the digest that NVIDIA's has.
PLUGIN: dict[str, Any] = {"options": {"GPUS": str(GPUS)}, "image": "nvcr.io/nvidia/k8s-device-plugin:v0"}

BOTH_WAYS = pytest.mark.parametrize("deferrable", [True, False], ids=["deferred", "blocking"])
_COUNT_GPUS = """echo '{"gpus": "'$CUDA_VISIBLE_DEVICES'"}' > /airflow/xcom/return.json"""


def lab(node: str) -> KubernetesGpuPool:
    """A pool of this one node, which has its GPUs from the plugin that this package installs."""
    labels = {"role": "train"}
    return KubernetesGpuPool(
        name="lab", nodes=[node], gpus_per_node=GPUS, kubernetes_conn_id="bare_metal", node_labels=labels
    )


def airflow_reaches(kubeconfig: Path, patch: pytest.MonkeyPatch) -> None:
    connection = {"conn_type": "kubernetes", "extra": {"kube_config_path": str(kubeconfig)}}
    patch.setenv("AIRFLOW_CONN_BARE_METAL", json.dumps(connection))
    patch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")
    patch.setattr("airflow_gpu_provider.triggers.record.EVENT_AFTER_SECONDS", 0)


class NodeChecks:
    @pytest.fixture(scope="class")
    @classmethod
    def core(cls, kubeconfig: Path) -> Iterator[client.CoreV1Api]:
        with pytest.MonkeyPatch.context() as patch:
            airflow_reaches(kubeconfig, patch)
            yield client.CoreV1Api(config.new_client_from_config(str(kubeconfig)))

    @pytest.fixture(scope="class")
    @classmethod
    def pool(cls, core: client.CoreV1Api, node: str) -> Iterator[KubernetesGpuPool]:
        """The pool, ensured and with its plugin; none of both when the class is done."""
        pool = lab(node)
        ensured = run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, gpus=GPUS))
        assert [one["name"] for one in ensured["nodes"]] == [node]
        plugin = run(InstallDevicePluginOperator(task_id="plugin", gpu_pool=pool, **PLUGIN))
        assert (plugin["change"], plugin["nodes"]) == ("created", {node: GPUS})
        yield pool
        client.AppsV1Api(core.api_client).delete_namespaced_daemon_set(
            "nvidia-device-plugin-lab", PLUGIN_NAMESPACE, grace_period_seconds=1
        )
        eventually(lambda: gpus(core, node) == 0)

    @pytest.fixture(scope="class")
    @classmethod
    def told(cls, kubeconfig: Path, node: str, pool: KubernetesGpuPool) -> dict[str, dict[str, Any]]:
        return stories.tell_all(kubeconfig, node)

    @pytest.fixture(autouse=True)
    def nothing_left(self, core: client.CoreV1Api, pool: KubernetesGpuPool) -> Iterator[None]:
        yield
        core.delete_collection_namespaced_pod("default", grace_period_seconds=1)
        eventually(lambda: not core.list_namespaced_pod("default").items)

    def test_node_is_labelled_and_the_plugin_found(
        self, core: client.CoreV1Api, pool: KubernetesGpuPool, node: str
    ) -> None:
        labels = core.read_node(node).metadata.labels
        assert (labels["airflow-gpu-provider/pool"], labels["role"]) == ("lab", "train")
        assert gpus(core, node) == GPUS
        again = run(InstallDevicePluginOperator(task_id="plugin", gpu_pool=pool, **PLUGIN))
        assert again["change"] == "unchanged"

    def test_two_pods_of_two_gpus_fit_and_a_third_waits(self, core: client.CoreV1Api, pool: KubernetesGpuPool) -> None:
        for name in ("one", "two"):
            core.create_namespaced_pod("default", gpu_pod(pool, name))
        eventually(lambda: all(phase(core, name) == "Running" for name in ("one", "two")))
        eventually(lambda: all(log_of(core, name).endswith("\n") for name in ("one", "two")))
        held = [log_of(core, name).strip().split(",") for name in ("one", "two")]
        assert len({gpu for one in held for gpu in one}) == GPUS
        core.create_namespaced_pod("default", gpu_pod(pool, "three"))
        eventually(lambda: "Insufficient nvidia.com/gpu" in why_pending(core, "three"))
        core.delete_namespaced_pod("one", "default", grace_period_seconds=1)
        eventually(lambda: phase(core, "three") == "Running")

    @BOTH_WAYS
    def test_result_comes_through_the_sidecar(self, pool: KubernetesGpuPool, deferrable: bool) -> None:
        result = run(train(pool, _COUNT_GPUS, gpus=2, do_xcom_push=True, deferrable=deferrable))
        assert len(result["gpus"].split(",")) == 2

    @BOTH_WAYS
    def test_failure_tells_exit_code_and_last_words(self, pool: KubernetesGpuPool, deferrable: bool) -> None:
        with pytest.raises(PodFailed, match=r"exit code 3(.|\n)*CUDA is sad") as error:
            run(train(pool, "echo CUDA is sad; exit 3", deferrable=deferrable))
        assert error.value.details["exit_code"] == 3

    def test_out_of_memory_names_the_limit(self, pool: KubernetesGpuPool) -> None:
        limits = k8s.V1ResourceRequirements(limits={"memory": "64Mi"})
        hog = "exec dd if=/dev/zero of=/dev/null bs=400M count=1000"
        with pytest.raises(PodOutOfMemory, match="64Mi"):
            run(train(pool, hog, container_resources=limits))

    def test_image_that_does_not_exist_fails_once_that_lasts(
        self, pool: KubernetesGpuPool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(LASTS, "absent", timedelta(seconds=1))
        with pytest.raises(PodImageError, match=r"nowhere\.example/train:1"):
            run(train(pool, "true", image="nowhere.example/train:1"))

    def test_pod_over_its_deadline(self, pool: KubernetesGpuPool) -> None:
        with pytest.raises(PodDeadline):
            run(train(pool, "sleep 600", active_deadline_seconds=3, termination_grace_period=1))

    def test_deleted_pod_is_preempted(self, core: client.CoreV1Api, pool: KubernetesGpuPool) -> None:
        def delete() -> None:
            (pod,) = core.list_namespaced_pod("default").items
            core.delete_namespaced_pod(pod.metadata.name, "default", grace_period_seconds=1)

        with pytest.raises(PodPreempted, match="deleted"):
            run_and_act(train(pool, "echo begun; sleep 600"), delete)

    def test_exec(self, core: client.CoreV1Api, pool: KubernetesGpuPool) -> None:
        core.create_namespaced_pod("default", gpu_pod(pool, "target"))
        eventually(lambda: phase(core, "target") == "Running")
        assert execute(core, "target", "echo out; echo err >&2; exit 4") == ("out\n", "err\n", 4)
        assert execute(core, "target", "true") == ("", "", 0)
        assert execute(core, "target", "read line; echo got $line", stdin="hello\n") == ("got hello\n", "", 0)
        size = 2**20
        assert len(execute(core, "target", f"head -c {size} /dev/zero | tr '\\0' x")[0]) == size

    def test_logs(self, core: client.CoreV1Api, pool: KubernetesGpuPool) -> None:
        pod = gpu_pod(pool, "talks")
        script = "echo line 1; echo line 2; while ! [ -e /tmp/on ]; do sleep 0.1; done; echo line 3"
        pod["spec"]["containers"][0]["command"] = ["sh", "-c", script]
        core.create_namespaced_pod("default", pod)
        eventually(lambda: phase(core, "talks") == "Running")
        follower = core.read_namespaced_pod_log("talks", "default", follow=True, _preload_content=False)
        pieces = follower.stream()
        text = next(pieces)
        execute(core, "talks", "touch /tmp/on")
        assert text + b"".join(pieces) == b"line 1\nline 2\nline 3\n"
        assert log_of(core, "talks", tail_lines=1) == "line 3\n"
        stamp, _, line = log_of(core, "talks", timestamps=True).splitlines()[0].partition(" ")
        assert (stamp[10], stamp[-1], line) == ("T", "Z", "line 1")

    def test_long_line_has_one_time_and_many_parts(self, core: client.CoreV1Api, pool: KubernetesGpuPool) -> None:
        pod = gpu_pod(pool, "long")
        script = "echo first; head -c 50000 /dev/zero | tr '\\0' x; echo; echo last"
        pod["spec"]["containers"][0]["command"] = ["sh", "-c", script]
        core.create_namespaced_pod("default", pod)
        eventually(lambda: phase(core, "long") == "Succeeded")
        lines = log_of(core, "long", timestamps=True).splitlines()
        assert [len(line.partition(" ")[2]) for line in lines] == [5, 50000, 4]
        assert log_of(core, "long", tail_lines=2) == "x" * (50000 % 16384) + "\nlast\n"

    def test_log_of_ten_mebibytes_is_rotated(self, core: client.CoreV1Api, pool: KubernetesGpuPool) -> None:
        """Who follows it gets all, who comes later what was written since."""
        pod = gpu_pod(pool, "prints")
        wait = "while ! [ -e /tmp/%s ]; do sleep 0.1; done"
        lines = f"yes {'x' * 99} | head -n {LINES_OF_TEN_MIB}"
        script = f"echo start; {wait % 'on'}; {lines}; {wait % 'after'}; echo after; {wait % 'end'}"
        pod["spec"]["containers"][0]["command"] = ["sh", "-c", script]
        core.create_namespaced_pod("default", pod)
        eventually(lambda: phase(core, "prints") == "Running")
        follower = core.read_namespaced_pod_log("prints", "default", follow=True, _preload_content=False)
        pieces = follower.stream()
        text = [next(pieces)]
        execute(core, "prints", "touch /tmp/on")
        with ThreadPoolExecutor(1) as thread:
            rest = thread.submit(lambda: text.extend(pieces))
            eventually(lambda: log_of(core, "prints", tail_lines=1) == "")
            execute(core, "prints", "touch /tmp/after")
            eventually(lambda: log_of(core, "prints") == "after\n")
            # Who follows does not hear of the next file once the container has ended.
            eventually(lambda: b"".join(text[-2:]).endswith(b"after\n"))
            execute(core, "prints", "touch /tmp/end")
            rest.result(240)
        assert b"".join(text) == b"start\n" + (b"x" * 99 + b"\n") * LINES_OF_TEN_MIB + b"after\n"

    def test_node_is_left_as_a_machine_of_its_owner(
        self, core: client.CoreV1Api, pool: KubernetesGpuPool, node: str
    ) -> None:
        down = run(ScaleDownSensor(task_id="scale_down", gpu_pool=pool))
        assert (down["nodes"], down["kept"]) == (1, [])
        conditions = {one.type: one.status for one in core.read_node(node).status.conditions}
        assert conditions == {
            "MemoryPressure": "False",
            "DiskPressure": "False",
            "PIDPressure": "False",
            "Ready": "True",
        }

    def test_pod_whose_devices_no_driver_prepares_never_starts(
        self, core: client.CoreV1Api, node: str, unserved_claim: str
    ) -> None:
        container = {**stories.sh("true"), "resources": {"claims": [{"name": "gpu"}]}}
        claims = [{"name": "gpu", "resourceClaimName": unserved_claim}]
        spec = {"restartPolicy": "Never", "containers": [container], "resourceClaims": claims}
        core.create_namespaced_pod("default", {"metadata": {"name": "claims"}, "spec": spec})
        eventually(lambda: "FailedPrepareDynamicResources" in events_of(core, "claims"))
        pod = core.read_namespaced_pod("claims", "default")
        assert (pod.status.phase, pod.spec.node_name) == ("Pending", node)
        assert events_of(core, "claims")["FailedPrepareDynamicResources"] == (
            "Failed to prepare dynamic resources: prepare dynamic resources: DRA driver gpu.example is not registered"
        )

    @pytest.fixture
    def unserved_claim(self, core: client.CoreV1Api, node: str) -> Iterator[str]:
        """A ResourceClaim that the scheduler can allocate, as a slice offers a device of which no driver knows."""
        resources = client.ResourceV1Api(core.api_client)
        device_class = {"metadata": {"name": "gpu.example"}, "spec": {}}
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        offer = {"driver": "gpu.example", "nodeName": node, "pool": pool, "devices": [{"name": "gpu-0"}]}
        request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.example"}}
        resources.create_device_class(device_class)
        resources.create_resource_slice({"metadata": {"name": f"{node}-gpu"}, "spec": offer})
        claim = {"metadata": {"name": "one-gpu"}, "spec": {"devices": {"requests": [request]}}}
        resources.create_namespaced_resource_claim("default", claim)
        yield "one-gpu"
        core.delete_namespaced_pod("claims", "default", grace_period_seconds=0)
        resources.delete_namespaced_resource_claim("one-gpu", "default")
        # A kubelet deletes the slices of a driver that it does not know.
        resources.delete_collection_resource_slice(field_selector=f"spec.nodeName={node}")
        resources.delete_device_class("gpu.example")

    @pytest.mark.parametrize("title", stories.STORIES)
    def test_story(self, told: dict[str, dict[str, Any]], title: str) -> None:
        shown = stories.expected()[title]
        assert stories.alike(told[title], shown) == shown


def train(pool: KubernetesGpuPool, script: str, **arguments: Any) -> GpuPodOperator:
    usual = {"task_id": "train", "gpu_pool": pool, "image": IMAGE, "cmds": ["sh", "-c", script]}
    return GpuPodOperator(**{**usual, **arguments})


def gpu_pod(pool: KubernetesGpuPool, name: str) -> dict[str, Any]:
    put = placement(pool, gpus=2)
    script = "echo $CUDA_VISIBLE_DEVICES; sleep 600"
    container = {"name": "main", "image": IMAGE, "command": ["sh", "-c", script], "resources": {"limits": put.limits}}
    spec = {"restartPolicy": "Never", "containers": [container], **put.pod_spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def gpus(core: client.CoreV1Api, node: str) -> int:
    return int(core.read_node(node).status.allocatable.get("nvidia.com/gpu", 0))


def events_of(core: client.CoreV1Api, name: str) -> dict[str, str]:
    """The newest message of each reason."""
    found = core.list_namespaced_event("default", field_selector=f"involvedObject.name={name}").items
    return {one.reason: one.message for one in found}


def phase(core: client.CoreV1Api, name: str) -> str:
    return str(core.read_namespaced_pod(name, "default").status.phase)


def why_pending(core: client.CoreV1Api, name: str) -> str:
    conditions = core.read_namespaced_pod(name, "default").status.conditions or ()
    return " ".join(one.message or "" for one in conditions if one.reason == "Unschedulable")


def log_of(core: client.CoreV1Api, name: str, **options: Any) -> str:
    reply = core.read_namespaced_pod_log(name, "default", _preload_content=False, **options)
    return str(reply.read().decode())


def execute(
    core: client.CoreV1Api, name: str, script: str, stdin: str | None = None, container: str | None = None
) -> tuple[str, str, int]:
    session = stream.stream(
        core.connect_get_namespaced_pod_exec,
        name,
        "default",
        container=container,
        command=["sh", "-c", script],
        stdin=stdin is not None,
        stdout=True,
        stderr=True,
        tty=False,
        _preload_content=False,
    )
    if stdin is not None:
        session.write_stdin(stdin)
    deadline = time.monotonic() + 240
    while session.is_open() and time.monotonic() < deadline:
        session.update(timeout=1)
    return session.read_stdout() or "", session.read_stderr() or "", session.returncode


UNTIL_TOLD = "until [ -e /tmp/end ]; do sleep 0.1; done"
"""What a container waits with for `end`."""


def end(core: client.CoreV1Api, name: str, container: str = "base") -> None:
    """Let a pod's container end; it may end, and this command with it, before the command returns."""
    assert execute(core, name, "touch /tmp/end", container=container)[2] in (0, 137)
