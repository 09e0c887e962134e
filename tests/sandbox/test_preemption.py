"""Preemption is not failure: a training on spot goes on from its checkpoint, in one try, and ends as if undisturbed.

GPU_TEST_SPOT_LOSSES sets how many times the spot-loss scenario runs in a row; the default is one of each way to wait.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred
from kubernetes import client, config
from kubernetes.client import models as k8s
from structlog.testing import capture_logs

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.errors import CheckpointUnusable, PodPreempted, PodUnschedulable
from airflow_gpu_provider.operators.gpu_pod import GpuPodOperator
from gpu_sandbox.demo_trainings import example_dags
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.gpu_pools import eks_pool, with_nodes
from tests.sandbox.running import context_of, copy_of, eventually, first_event, line_of, resumption, run
from tests.sandbox.ways import BLOCKING_BY_DAY, DEFERRED_BY_DAY

TIMES = int(os.environ.get("GPU_TEST_SPOT_LOSSES", "1"))
EPOCHS = 40
"""So many that the first attempt has not ended, however late its machine is taken."""
TRAINS = f"python train.py --device cpu --epochs {EPOCHS} --seconds-per-epoch"
CLAIM = "checkpoints"
FOREVER = ["sh", "-c", "while :; do sleep 0.1; done"]


@pytest.fixture(scope="module")
def env(env: None) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("airflow_gpu_provider.triggers.record.EVENT_AFTER_SECONDS", 0)
        patch.setattr("airflow_gpu_provider.scaling.wait.pool_updates.EVERY", 1.0)
        yield


@pytest.fixture(scope="module")
def pool(gpu_sandbox: Sandbox, env: None) -> EksGpuPool:
    """A spot pool with one node."""
    return with_nodes(eks_pool(gpu_sandbox, "spot", capacity_types=["SPOT"]))


@pytest.fixture
def core(pool: EksGpuPool) -> Iterator[client.CoreV1Api]:
    """The cluster, as its administrator; pods that a test left are deleted."""
    core = client.CoreV1Api(config.new_client_from_config(os.environ["KUBECONFIG"]))
    yield core
    remove_pods(core)


@pytest.fixture
def claim(core: client.CoreV1Api, tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Makes a claim that is bound to a volume which every node mounts; returns the volume's folder."""
    folder = tmp_path / "volume"

    def make(zone: str | None = None) -> Path:
        folder.mkdir()
        zones = [k8s.V1NodeSelectorRequirement(key="topology.kubernetes.io/zone", operator="In", values=[zone])]
        affinity = k8s.V1NodeSelector(node_selector_terms=[k8s.V1NodeSelectorTerm(match_expressions=zones)])
        common: dict[str, Any] = {"access_modes": ["ReadWriteMany"], "storage_class_name": ""}
        core.create_persistent_volume(
            k8s.V1PersistentVolume(
                metadata=k8s.V1ObjectMeta(name=CLAIM),
                spec=k8s.V1PersistentVolumeSpec(
                    capacity={"storage": "1Gi"},
                    host_path=k8s.V1HostPathVolumeSource(path=str(folder)),
                    node_affinity=k8s.V1VolumeNodeAffinity(required=affinity) if zone else None,
                    **common,
                ),
            )
        )
        wanted = k8s.V1VolumeResourceRequirements(requests={"storage": "1Gi"})
        core.create_namespaced_persistent_volume_claim(
            "default",
            k8s.V1PersistentVolumeClaim(
                metadata=k8s.V1ObjectMeta(name=CLAIM),
                spec=k8s.V1PersistentVolumeClaimSpec(volume_name=CLAIM, resources=wanted, **common),
            ),
        )
        eventually(lambda: core.read_namespaced_persistent_volume_claim(CLAIM, "default").status.phase == "Bound")
        return folder

    yield make
    if folder.exists():
        remove_pods(core)
        core.delete_namespaced_persistent_volume_claim(CLAIM, "default")
        core.delete_persistent_volume(CLAIM)
        eventually(lambda: not core.list_persistent_volume().items)


def remove_pods(core: client.CoreV1Api) -> None:
    """Delete all pods; those whose node is gone without waiting for anybody's confirmation."""

    def on_nodes() -> list[client.V1Pod]:
        nodes = {node.metadata.name for node in core.list_node().items}
        return [pod for pod in core.list_namespaced_pod("default").items if pod.spec.node_name in nodes]

    core.delete_collection_namespaced_pod("default", grace_period_seconds=1)
    eventually(lambda: not on_nodes())
    core.delete_collection_namespaced_pod("default", grace_period_seconds=0)
    eventually(lambda: not core.list_namespaced_pod("default").items)


def live_pods(core: client.CoreV1Api) -> list[client.V1Pod]:
    """The pods that nobody deleted. On a node that is gone, Kubernetes takes a minute to remove a deleted one."""
    return [pod for pod in core.list_namespaced_pod("default").items if not pod.metadata.deletion_timestamp]


def training(pool: EksGpuPool, *, slow: float = 0, **changes: Any) -> GpuPodOperator:
    """`slow` is how many seconds an epoch takes at least in the first attempt."""
    arguments: dict[str, Any] = {
        "task_id": "train",
        "image": "train-digits:1",
        "cmds": ["sh", "-c", f'[ "$AIRFLOW_GPU_ATTEMPT" = 1 ] && slow={slow} || slow=0; exec {TRAINS} $slow'],
        "arguments": [],
        "env_vars": {"OPENBLAS_NUM_THREADS": "1"},
        "do_xcom_push": True,
        "termination_grace_period": 3,
        "volumes": [_volume(persistent_volume_claim=k8s.V1PersistentVolumeClaimVolumeSource(claim_name=CLAIM))],
        "volume_mounts": [k8s.V1VolumeMount(name="work", mount_path="/checkpoints")],
        "checkpoint": "/checkpoints",
    }
    return GpuPodOperator(gpu_pool=pool, **(arguments | changes))


def _volume(**source: Any) -> k8s.V1Volume:
    return k8s.V1Volume(name="work", **source)


class SpotLoss:
    """Takes the node of the task's pod, as the cloud takes a spot machine, so many times; keeps the pods' logs."""

    def __init__(self, sandbox: Sandbox, core: client.CoreV1Api, *, times: int, after: str = "epoch 03") -> None:
        self._sandbox = sandbox
        self._core = core
        self._times = times
        self._after = after
        self.logs: dict[str, str] = {}
        self._before = {pod.metadata.uid for pod in core.list_namespaced_pod("default").items}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="spot-loss", daemon=True)

    def __enter__(self) -> SpotLoss:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(timeout=120)
        for pod in self._started():
            self._read_log(pod.metadata.name)  # of a pod that ended, and was kept, since the last look

    def _started(self) -> list[client.V1Pod]:
        pods = self._core.list_namespaced_pod("default").items
        return [pod for pod in pods if pod.metadata.uid not in self._before and pod.status.phase != "Pending"]

    def _watch(self) -> None:
        taken: set[str] = set()
        while not self._ended.wait(0.2):
            for pod in self._started():
                self._read_log(pod.metadata.name)
                log = self.logs.get(pod.metadata.name, "")
                if pod.metadata.uid not in taken and len(taken) < self._times and self._after in log:
                    taken.add(pod.metadata.uid)
                    node = self._core.read_node(pod.spec.node_name)
                    self._sandbox.aws.interrupt_spot(node.spec.provider_id.rpartition("/")[2])

    def _read_log(self, name: str) -> None:
        try:
            answer = self._core.read_namespaced_pod_log(name, "default", container="base", _preload_content=False)
        except client.ApiException:
            return  # the pod, or its node, went in this moment
        log = answer.data.decode()
        if len(log) > len(self.logs.get(name, "")):
            self.logs[name] = log


def epochs(log: str) -> list[int]:
    return [int(number) for number in re.findall(r"^epoch (\d+)/", log, re.MULTILINE)]


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, Any]:
    """The result of a training that nobody interrupts."""
    command = [sys.executable, str(example_dags() / "train_digits" / "train.py"), "--device", "cpu"]
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    said = subprocess.run([*command, "--epochs", str(EPOCHS)], env=env, check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(said.stdout.splitlines()[-1])
    return result


@DEFERRED_BY_DAY
@pytest.mark.parametrize("_time", range(TIMES))
def test_spot_loss_in_the_middle_loses_no_epoch(
    gpu_sandbox: Sandbox,
    core: client.CoreV1Api,
    pool: EksGpuPool,
    claim: Callable[..., Path],
    undisturbed: dict[str, Any],
    deferrable: bool,
    _time: int,
) -> None:
    folder = claim()
    task = training(pool, slow=0.8, deferrable=deferrable, on_finish_action="keep_pod")  # for its log to be read here
    context = context_of(task)
    with SpotLoss(gpu_sandbox, core, times=1) as loss:
        result = run(task, context)
    (kept,) = live_pods(core)
    # Before its sidecar has ended too, it still has its GPU.
    eventually(lambda: core.read_namespaced_pod(kept.metadata.name, "default").status.phase == "Succeeded")
    core.delete_namespaced_pod(kept.metadata.name, "default")
    eventually(lambda: not live_pods(core))
    assert result | {"model": None} == undisturbed
    first, second = map(epochs, loss.logs.values())
    assert second[0] > 3, "what was trained before the loss is trained again"
    assert second == [*range(second[0], EPOCHS + 1)]
    # What the first pod said in the moment of its end may not have been read any more.
    assert first == [*range(1, len(first) + 1)]
    assert len(first) < second[0]
    assert {entry["attempt"] for entry in context["ti"].xcoms["timeline"]} == {1, 2}
    (run_folder,) = folder.iterdir()
    assert (run_folder / "checkpoint.npz").exists()


def log_of_task(operator: GpuPodOperator, *meanwhile: Callable[[Sequence[Any]], None]) -> list[str]:
    """Run the operator, and something during each wait in the triggerer; return its log as Airflow 3.3 keeps it.

    Each wait there clears what was logged in the one before. What is done meanwhile gets the entries of its wait, which
    grow.
    """
    of_workers: list[str] = []
    of_triggerer: list[str] = []
    context = context_of(operator)
    step: Callable[[], Any] = lambda: operator.execute(context)  # type: ignore[arg-type]  # noqa: E731
    for act in (*meanwhile, None):
        with capture_logs() as told, suppress(TaskDeferred):
            try:
                step()
            except TaskDeferred as deferral:
                waits = deferral
                raise
        of_workers += map(line_of, told)
        if act is None:
            break
        with capture_logs() as told:
            acting = threading.Thread(target=act, args=(told,))
            acting.start()
            event = asyncio.run(first_event(copy_of(waits.trigger)))
            acting.join()
        of_triggerer = [*map(line_of, told)]
        step = resumption(operator, waits, context, event)
    return [*of_workers, *of_triggerer]


def test_log_of_an_evicted_attempt_is_in_the_tasks_log(core: client.CoreV1Api, pool: EksGpuPool) -> None:
    script = """
        trap 'echo saving; echo saved; exit 143' TERM
        for step in 1 2 3; do echo "attempt $AIRFLOW_GPU_ATTEMPT, step $step"; done
        [ "$AIRFLOW_GPU_ATTEMPT" = 2 ] || while :; do sleep 0.1; done
    """
    here = {"volumes": [], "volume_mounts": [], "arguments": [], "do_xcom_push": False, "checkpoint": None}
    task = training(pool, image="busybox:1.36", cmds=["sh", "-c", script], on_preemption="resume", **here)

    def evict(told: Sequence[Any]) -> None:
        (pod,) = eventually(lambda: [each for each in live_pods(core) if each.status.phase == "Running"])
        name = pod.metadata.name
        eventually(lambda: any("step 3" in line_of(entry) for entry in [*told]))  # else nobody follows its log yet
        metadata = k8s.V1ObjectMeta(name=name, namespace="default")
        core.create_namespaced_pod_eviction(name, "default", k8s.V1Eviction(metadata=metadata))

    lines = log_of_task(task, evict, lambda _: None)
    said = "\n".join(lines)
    for attempt in (1, 2):
        assert [said.count(f"attempt {attempt}, step {step}") for step in (1, 2, 3)] == [1, 1, 1]
    assert said.index("container base started on node") < said.index("[base] attempt 1, step 1")
    assert said.index("attempt 1, step 3") < said.index("[base] saved") < said.index("was preempted")


@BLOCKING_BY_DAY
def test_attempts_know_their_number_and_share_a_run_id(
    gpu_sandbox: Sandbox, core: client.CoreV1Api, pool: EksGpuPool, deferrable: bool
) -> None:
    script = """
        echo "$AIRFLOW_GPU_ATTEMPT $AIRFLOW_GPU_RUN_ID $AIRFLOW_GPU_CHECKPOINT"; echo begun
        if [ "$AIRFLOW_GPU_ATTEMPT" != 3 ]; then exec sleep 600; fi
    """
    task = training(
        pool,
        image="busybox:1.36",
        cmds=["sh", "-c", script],
        arguments=[],
        do_xcom_push=False,
        checkpoint="s3://bucket/digits/",
        volumes=[],
        volume_mounts=[],
        deferrable=deferrable,
        on_finish_action="keep_pod",
    )
    with SpotLoss(gpu_sandbox, core, times=2, after="begun") as loss:
        run(task)
    lines = sorted(log.splitlines()[0].split() for log in loss.logs.values())
    assert [line[0] for line in lines] == ["1", "2", "3"]
    assert len({line[1] for line in lines}) == 1
    assert {line[2] for line in lines} == {f"s3://bucket/digits/{lines[0][1]}"}
    (left,) = live_pods(core)
    assert left.metadata.annotations["airflow-gpu-provider/attempt"] == "3"


@DEFERRED_BY_DAY
def test_preemptions_are_bounded(
    gpu_sandbox: Sandbox, core: client.CoreV1Api, pool: EksGpuPool, deferrable: bool
) -> None:
    task = training(
        pool,
        image="busybox:1.36",
        cmds=["sh", "-c", "echo begun; exec sleep 600"],
        arguments=[],
        do_xcom_push=False,
        checkpoint=None,
        volumes=[],
        volume_mounts=[],
        on_preemption="resume",
        max_preemptions=1,
        deferrable=deferrable,
    )
    with SpotLoss(gpu_sandbox, core, times=9, after="begun") as loss, pytest.raises(PodPreempted):
        run(task)
    assert len(loss.logs) == 2
    assert not live_pods(core)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ({"host_path": k8s.V1HostPathVolumeSource(path="/mnt")}, "hostPath, and a spot node"),
        ({"empty_dir": k8s.V1EmptyDirVolumeSource()}, "deleted with the pod"),
    ],
    ids=["hostPath", "emptyDir"],
)
def test_checkpoint_that_would_be_lost_is_refused_before_anything_is_created(
    core: client.CoreV1Api, pool: EksGpuPool, source: dict[str, Any], why: str
) -> None:
    with pytest.raises(CheckpointUnusable, match=why):
        run(training(pool, volumes=[_volume(**source)]))
    assert not core.list_namespaced_pod("default").items


def test_volume_in_another_zone_is_refused_before_anything_is_created(
    gpu_sandbox: Sandbox, core: client.CoreV1Api, pool: EksGpuPool, claim: Callable[..., Path]
) -> None:
    claim(zone=gpu_sandbox.zones[1])
    for where_it_is in (
        pool,
        replace(pool, zones=()),
    ):  # its groups have zones all the same
        with pytest.raises(PodUnschedulable, match=f"{gpu_sandbox.zones[1]}, but pool spot"):
            run(training(where_it_is))
    assert not core.list_namespaced_pod("default").items


def test_volume_in_the_pools_zone_is_taken(
    gpu_sandbox: Sandbox, pool: EksGpuPool, claim: Callable[..., Path], undisturbed: dict[str, Any]
) -> None:
    claim(zone=gpu_sandbox.zones[0])
    assert run(training(pool)) | {"model": None} == undisturbed
