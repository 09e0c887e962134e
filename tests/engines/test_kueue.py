"""GpuWorkloadOperator and GpuPodOperator under the real controllers of JobSet, Kubeflow Trainer and Kueue."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kubernetes import client, config, dynamic
from structlog.testing import capture_logs

from airflow_gpu_provider import EksGpuPool, KubernetesGpuPool
from airflow_gpu_provider.cluster.api.rest import call
from airflow_gpu_provider.cluster.model.gpu_evidence import BAD_GPU
from airflow_gpu_provider.errors import GpuError, PodFailed, PodPreempted
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.operators.gpu_pod import GpuPodOperator
from airflow_gpu_provider.operators.gpu_workload import GpuWorkloadOperator
from airflow_gpu_provider.scaling.state.demand_leases import list_demand
from airflow_gpu_provider.training.place.kinds import KINDS, templates_of
from airflow_gpu_provider.training.place.manifest import named, place_workload, with_queue
from airflow_gpu_provider.training.place.pod_placement import Placement
from gpu_sandbox.nodes import NodeSpec
from gpu_sandbox.sandbox import Sandbox
from tests.engines.test_engines import QUEUES, create
from tests.sandbox.running import eventually, line_of, run
from tests.unit.training.manifests import a

BY_PRIORITY = """
    apiVersion: kueue.x-k8s.io/v1beta2
    kind: ResourceFlavor
    metadata: {name: by-priority}
---
    apiVersion: kueue.x-k8s.io/v1beta2
    kind: WorkloadPriorityClass
    metadata: {name: urgent}
    value: 1000
---
    apiVersion: kueue.x-k8s.io/v1beta2
    kind: ClusterQueue
    metadata: {name: by-priority}
    spec:
      namespaceSelector: {}
      preemption: {withinClusterQueue: LowerPriority}
      resourceGroups:
      - coveredResources: [nvidia.com/gpu]
        flavors: [{name: by-priority, resources: [{name: nvidia.com/gpu, nominalQuota: 2}]}]
---
    apiVersion: kueue.x-k8s.io/v1beta2
    kind: LocalQueue
    metadata: {name: urgent-first, namespace: default}
    spec: {clusterQueue: by-priority}
"""
URGENT = {"kueue.x-k8s.io/priority-class": "urgent"}
FOREVER = "trap 'exit 0' TERM; echo up; while :; do sleep 0.1; done"

JOBSET = "jobset.x-k8s.io/v1alpha2"


@pytest.fixture(scope="module")
def pool(engines_sandbox: Sandbox) -> Iterator[KubernetesGpuPool]:
    """All engines, and a pool with two nodes of one GPU each."""
    names = ["workload-0", "workload-1"]
    for name in names:
        engines_sandbox.agent.add_node(NodeSpec(name=name, gpus=1, device_plugin_builtin=True))
    pool = KubernetesGpuPool(name="engines", nodes=names)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in engines_sandbox.env().items():
            patch.setenv(name, value)
        patch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")
        patch.setattr("airflow_gpu_provider.triggers.record.EVENT_AFTER_SECONDS", 0)
        run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, nodes=2, deferrable=False))
        yield pool


@pytest.fixture(scope="module")
def objects(engines_sandbox: Sandbox) -> Iterator[dynamic.DynamicClient]:
    with config.new_client_from_config(str(engines_sandbox.kubeconfig)) as api:
        yield dynamic.DynamicClient(api)


def template(script: str) -> dict[str, Any]:
    container = {
        "name": "train",
        "image": "busybox:1",
        "command": ["sh", "-c", script],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    }
    return {"spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]}}


def a_job_set(script: str) -> dict[str, Any]:
    indexed = {"parallelism": 2, "completions": 2, "backoffLimit": 0, "template": template(script)}
    return {"apiVersion": JOBSET, "kind": "JobSet", "spec": {"replicatedJobs": [_named("workers", indexed)]}}


def _named(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "template": {"spec": spec}}


def a_job(script: str) -> dict[str, Any]:
    indexed = {"completionMode": "Indexed", "parallelism": 2, "completions": 2, "backoffLimit": 0}
    return {"apiVersion": "batch/v1", "kind": "Job", "spec": {**indexed, "template": template(script)}}


def workload(pool: KubernetesGpuPool, manifest: Any, task_id: str = "train", **changes: Any) -> GpuWorkloadOperator:
    return GpuWorkloadOperator(task_id=task_id, gpu_pool=pool, manifest=manifest, **changes)


def lines_of(do: Callable[[], Any]) -> list[str]:
    """Return the lines that it has logged."""
    with capture_logs() as told:
        do()
    return said(told)


def said(told: list[Any]) -> list[str]:
    """Return what `capture_logs` has caught, as lines."""
    return [line_of(entry) for entry in told]


@pytest.mark.parametrize("kind", KINDS)
def test_placed_manifest_is_what_the_kind_s_schema_has(objects: dynamic.DynamicClient, kind: str) -> None:
    large = EksGpuPool(
        name="large", cluster_name="k8s", region="us-west-2", instance_types=["p5.48xlarge"], max_nodes=4
    )
    placement = Placement(
        pool=large,
        gpus=0,
        base_container="",
        active_deadline_seconds=600,
        labels={"airflow-gpu-provider/run": "r1"},
        annotations={"airflow-gpu-provider/owner": "o1"},
        avoid=({"key": BAD_GPU, "operator": "DoesNotExist"},),
        env={"AIRFLOW_GPU_ATTEMPT": "1"},
    )
    manifest = with_queue(named(a(kind), namespace="default", prefix="x"), "team-a")
    if kind in ("Job", "JobSet"):
        for template in templates_of(manifest):
            template.template["spec"]["restartPolicy"] = "Never"
    path = f"/{KINDS[kind].path.format(namespace='default')}"
    query = {"dryRun": "All", "fieldValidation": "Strict"}
    body = place_workload(manifest, placement)
    call(objects.client, "create", path, resource=KINDS[kind].plural, query=query, body=body)


def test_job_set_runs_with_all_its_pods_logs(pool: KubernetesGpuPool, objects: dynamic.DynamicClient) -> None:
    lines = lines_of(lambda: run(workload(pool, a_job_set("echo index $JOB_COMPLETION_INDEX"))))
    for index in (0, 1):
        assert lines.count(f"[workers 0-{index}] index {index}") == 1
    sets = objects.resources.get(api_version=JOBSET, kind="JobSet")
    eventually(
        lambda: not [each for each in sets.get(namespace="default").items if each.metadata.name.startswith("train-")]
    )


def test_job_set_fails_with_the_pod_that_failed_first(pool: KubernetesGpuPool) -> None:
    script = '[ "$JOB_COMPLETION_INDEX" = 1 ] && { sleep 1; echo loss is NaN; exit 3; }; sleep 600'
    with pytest.raises(PodFailed, match=r"Workers 0-1: (.|\n)*loss is NaN") as error:
        run(workload(pool, a_job_set(script)))
    assert error.value.details["exit_code"] == 3


def test_train_job_is_placed_by_a_patch_of_its_runtime(pool: KubernetesGpuPool) -> None:
    trainer = {
        "numNodes": 2,
        "image": "busybox:1",
        "command": ["sh", "-c", "echo rank $PET_NODE_RANK, attempt $AIRFLOW_GPU_ATTEMPT"],
        "resourcesPerNode": {"limits": {"nvidia.com/gpu": 1}},
    }
    spec = {"runtimeRef": {"name": "torch-distributed"}, "trainer": trainer}
    manifest = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "spec": spec}
    lines = lines_of(lambda: run(workload(pool, manifest)))
    for rank in (0, 1):
        assert lines.count(f"[node {rank}] rank {rank}, attempt 1") == 1


def test_kueue_admits_one_and_says_why_the_other_waits(pool: KubernetesGpuPool, objects: dynamic.DynamicClient) -> None:
    for queue in QUEUES:
        create(
            objects,
            queue.replace("gpus}", "engines}")
            .replace("clusterQueue: gpus", "clusterQueue: engines")
            .replace("name: team-a", "name: workloads")
            .replace("name: l4", "name: engines-l4"),
        )
    core, batch = client.CoreV1Api(objects.client), client.BatchV1Api(objects.client)
    first = Running(workload(pool, a_job(FOREVER), "first", queue_name="workloads"))
    eventually(
        lambda: [pod.metadata.name[:6] for pod in pods_of(core) if pod.status.phase == "Running"] == 2 * ["first-"]
    )
    with capture_logs() as told:
        second = Running(workload(pool, a_job("echo done"), "second", queue_name="workloads"))
        words = "1st of 1 in queue workloads; couldn't assign flavors"
        eventually(lambda: any(words in line for line in said([*told])))
        names = [job.metadata.name for job in batch.list_namespaced_job("default").items]
        (held,) = (name for name in names if name.startswith("first-"))
        batch.delete_namespaced_job(held, "default", propagation_policy="Background")
        assert second.ended() is None
    assert isinstance(first.ended(), PodPreempted)
    assert sum(line.endswith("] done") for line in said(told)) == 2


@pytest.fixture(scope="module")
def queue(objects: dynamic.DynamicClient) -> str:
    """A queue with a quota of two GPUs, in which what is urgent takes the place of what is not."""
    for each in BY_PRIORITY.split("---"):
        create(objects, each)
    return "urgent-first"


def queued(pool: KubernetesGpuPool, task_id: str, script: str, **changes: Any) -> GpuPodOperator:
    usual = {"task_id": task_id, "gpu_pool": pool, "image": "busybox:1.36", "cmds": ["sh", "-c", script]}
    return GpuPodOperator(**{**usual, "termination_grace_period": 1, "block_id": task_id, **changes})


class Running:
    """A task that runs in a thread of its own, and the error that it ends with."""

    def __init__(self, task: GpuPodOperator | GpuWorkloadOperator) -> None:
        self.error: GpuError | None = None
        self.task_id = task.task_id
        self._task = task
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            run(self._task)
        except GpuError as error:
            self.error = error

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def ended(self) -> GpuError | None:
        """Wait for its end, and return its error."""
        self._thread.join(timeout=600)
        assert not self._thread.is_alive()
        return self.error


def pods_of(core: client.CoreV1Api, selector: str = "") -> list[client.V1Pod]:
    pods: list[client.V1Pod] = core.list_namespaced_pod("default", label_selector=selector).items
    return pods


def running(core: client.CoreV1Api, task_id: str) -> list[str]:
    return [pod.metadata.name for pod in pods_of(core, f"task_id={task_id}") if pod.status.phase == "Running"]


@pytest.mark.parametrize("deferrable", [False, True], ids=["blocking", "deferred"])
def test_pod_waits_in_words_and_one_that_is_less_urgent_is_evicted_for_it(
    pool: KubernetesGpuPool, objects: dynamic.DynamicClient, queue: str, deferrable: bool
) -> None:
    core = client.CoreV1Api(objects.client)
    usual = {"queue_name": queue, "deferrable": deferrable}
    with capture_logs() as told:
        first = Running(queued(pool, "first", FOREVER, gpus=1, **usual))
        eventually(lambda: running(core, "first"))
        # With nodes of one GPU each the second has a node too; a third one waits for its quota.
        second = Running(queued(pool, "second", FOREVER, gpus=1, **usual))
        eventually(lambda: running(core, "second"))
        third = Running(queued(pool, "third", "echo third", gpus=1, **usual))
        words = f"waits to be admitted: 1st of 1 in queue {queue}; couldn't assign flavors"
        eventually(lambda: any(words in line for line in said([*told])))
        urgent = queued(pool, "urgent", "echo urgent", gpus=1, labels=URGENT, **usual)
        assert Running(urgent).ended() is None
    evicted = eventually(lambda: next((each for each in (first, second) if not each.is_alive), None))
    assert isinstance(evicted.error, PodPreempted)
    assert "Preempted" in str(evicted.error)
    assert third.ended() is None
    left = second if evicted is first else first
    core.delete_namespaced_pod(running(core, left.task_id)[0], "default", grace_period_seconds=1)
    assert isinstance(left.ended(), PodPreempted)


@pytest.mark.parametrize("deferrable", [False, True], ids=["blocking", "deferred"])
def test_gang_is_admitted_by_kueue_alone_and_preempted_when_kueue_takes_it_back(
    pool: KubernetesGpuPool, objects: dynamic.DynamicClient, queue: str, deferrable: bool
) -> None:
    core = client.CoreV1Api(objects.client)
    usual = {"queue_name": queue, "nodes": 2, "deferrable": deferrable}
    held = Running(queued(pool, "held", FOREVER, **usual))
    eventually(lambda: len(running(core, "held")) == 2)
    assert not [lease for lease in list_demand(objects.client) if "held" in lease.key.block]
    lines = lines_of(lambda: run(queued(pool, "urgent", "echo rank $AIRFLOW_GPU_NODE_RANK", labels=URGENT, **usual)))
    for rank in (0, 1):
        assert lines.count(f"[rank {rank}] rank {rank}") == 1
    error = held.ended()
    assert isinstance(error, PodPreempted)
    assert f"was evicted from queue {queue}: Preempted" in str(error)
    eventually(lambda: not pods_of(core, "task_id in (held, urgent)"))
