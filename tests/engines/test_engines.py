"""The real controllers of JobSet, Kubeflow Trainer and Kueue in a sandbox, which ends them with itself."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import yaml
from kubernetes import client, config, dynamic
from kubernetes.dynamic.exceptions import BadRequestError, DynamicApiError, ForbiddenError, UnprocessibleEntityError

from gpu_sandbox.engines import with_needed
from gpu_sandbox.nodes import NodeSpec
from gpu_sandbox.sandbox import Sandbox
from tests.engines.conftest import engine_processes
from tests.sandbox.running import eventually

JOBSET = "jobset.x-k8s.io/v1alpha2"
TRAINER = "trainer.kubeflow.org/v1alpha1"
KUEUE = "kueue.x-k8s.io/v1beta2"
WITH_PROCESSES = ["jobset", "kueue", "trainer"]


@pytest.fixture(scope="module")
def sandbox(engines_sandbox: Sandbox) -> Sandbox:
    """All engines, and two nodes of one GPU each."""
    for number in range(2):
        engines_sandbox.agent.add_node(NodeSpec(name=f"gpu-{number}", gpus=1, device_plugin_builtin=True))
    return engines_sandbox


@pytest.fixture(scope="module")
def api(sandbox: Sandbox) -> Iterator[client.ApiClient]:
    with config.new_client_from_config(str(sandbox.kubeconfig)) as api:
        yield api


@pytest.fixture(scope="module")
def objects(api: client.ApiClient) -> dynamic.DynamicClient:
    return dynamic.DynamicClient(api)


@pytest.fixture
def core(api: client.ApiClient) -> client.CoreV1Api:
    return client.CoreV1Api(api)


def create(objects: dynamic.DynamicClient, manifest: str, **how: Any) -> Any:
    made = yaml.safe_load(textwrap.dedent(manifest))
    kind = objects.resources.get(api_version=made["apiVersion"], kind=made["kind"])
    return kind.create(made, namespace="default" if kind.namespaced else None, **how)


def conditions(objects: dynamic.DynamicClient, version: str, kind: str, name: str) -> dict[str, dict[str, Any]]:
    found = objects.resources.get(api_version=version, kind=kind).get(name, namespace="default").to_dict()
    return {one["type"]: one for one in found.get("status", {}).get("conditions") or () if one["status"] == "True"}


def pods_of(core: client.CoreV1Api, label: str) -> list[client.V1Pod]:
    return core.list_namespaced_pod("default", label_selector=label).items


def log_of(core: client.CoreV1Api, pod: client.V1Pod) -> str:
    reply = core.read_namespaced_pod_log(pod.metadata.name, "default", _preload_content=False)
    return str(reply.data.decode().strip())


A_JOBSET = """
    apiVersion: jobset.x-k8s.io/v1alpha2
    kind: JobSet
    metadata: {name: pair}
    spec:
      replicatedJobs:
      - name: node
        replicas: 2
        template:
          spec:
            completions: 1
            parallelism: 1
            backoffLimit: 0
            template:
              spec:
                restartPolicy: Never
                containers:
                - {name: train, image: "busybox:1", command: [sh, -c, "echo $JOB_COMPLETION_INDEX"]}
    """


def test_a_jobset_of_two_replicas_completes(objects: dynamic.DynamicClient, core: client.CoreV1Api) -> None:
    create(objects, A_JOBSET)
    eventually(lambda: "Completed" in conditions(objects, JOBSET, "JobSet", "pair"))
    pods = pods_of(core, "jobset.sigs.k8s.io/jobset-name=pair")
    assert sorted(pod.metadata.labels["job-name"] for pod in pods) == ["pair-node-0", "pair-node-1"]
    assert {pod.status.phase for pod in pods} == {"Succeeded"}
    # What JobSet's own webhook fills in.
    pair = objects.resources.get(api_version=JOBSET, kind="JobSet").get("pair", namespace="default").to_dict()
    assert pair["spec"]["network"]["enableDNSHostnames"] is True
    assert pair["spec"]["replicatedJobs"][0]["template"]["spec"]["completionMode"] == "Indexed"


def test_a_jobset_that_its_webhook_does_not_take_is_refused(objects: dynamic.DynamicClient) -> None:
    policy = "spec:\n      successPolicy: {operator: All, targetReplicatedJobs: [no]}"
    with pytest.raises(DynamicApiError, match="no") as refusal:
        create(objects, A_JOBSET.replace("spec:", policy, 1))
    assert refusal.type in (BadRequestError, ForbiddenError, UnprocessibleEntityError)


def test_a_trainjob_becomes_a_jobset_jobs_and_pods(objects: dynamic.DynamicClient, core: client.CoreV1Api) -> None:
    create(
        objects,
        """
        apiVersion: trainer.kubeflow.org/v1alpha1
        kind: TrainJob
        metadata: {name: digits}
        spec:
          runtimeRef: {name: torch-distributed}
          trainer:
            numNodes: 2
            image: busybox:1
            command: [sh, -c, "echo rank $PET_NODE_RANK of $PET_NNODES at $PET_MASTER_ADDR"]
        """,
    )
    eventually(lambda: "Complete" in conditions(objects, TRAINER, "TrainJob", "digits"))
    assert "Completed" in conditions(objects, JOBSET, "JobSet", "digits")
    pods = pods_of(core, "jobset.sigs.k8s.io/jobset-name=digits")
    logs = sorted(log_of(core, pod) for pod in pods)
    assert logs == [f"rank {rank} of 2 at digits-node-0-0.digits" for rank in (0, 1)]


A_RAYJOB = """
    apiVersion: ray.io/v1
    kind: RayJob
    metadata: {name: tune}
    spec:
      rayClusterSpec:
        headGroupSpec:
          rayStartParams: {}
          template:
            spec:
              containers: [{name: ray, image: "rayproject/ray:2.46.0"}]
    """
A_PYTORCHJOB = """
    apiVersion: kubeflow.org/v1
    kind: PyTorchJob
    metadata: {name: tune}
    spec:
      pytorchReplicaSpecs:
        Worker:
          replicas: 2
          template:
            spec:
              containers: [{name: pytorch, image: "pytorch/pytorch:2.10.0"}]
    """


@pytest.mark.parametrize(
    ("manifest", "wrong"),
    [
        pytest.param(A_RAYJOB, ("rayStartParams: {}", "rayStartParams: 3"), id="RayJob"),
        pytest.param(A_PYTORCHJOB, ("replicas: 2", "replicas: two"), id="PyTorchJob"),
    ],
)
def test_kinds_without_a_controller_are_held_to_their_schema(
    objects: dynamic.DynamicClient, manifest: str, wrong: tuple[str, str]
) -> None:
    create(objects, manifest, dry_run="All")
    with pytest.raises((UnprocessibleEntityError, BadRequestError)):
        create(objects, manifest.replace(*wrong), dry_run="All")


QUEUES = (
    """
    apiVersion: kueue.x-k8s.io/v1beta2
    kind: ResourceFlavor
    metadata: {name: l4}
    """,
    """
    apiVersion: kueue.x-k8s.io/v1beta2
    kind: ClusterQueue
    metadata: {name: gpus}
    spec:
      namespaceSelector: {}
      resourceGroups:
      - coveredResources: [nvidia.com/gpu]
        flavors: [{name: l4, resources: [{name: nvidia.com/gpu, nominalQuota: 2}]}]
    """,
    """
    apiVersion: kueue.x-k8s.io/v1beta2
    kind: LocalQueue
    metadata: {name: team-a, namespace: default}
    spec: {clusterQueue: gpus}
    """,
)
A_GANG = """
    apiVersion: batch/v1
    kind: Job
    metadata: {name: %s, labels: {kueue.x-k8s.io/queue-name: team-a}}
    spec:
      suspend: true
      completionMode: Indexed
      completions: 2
      parallelism: 2
      backoffLimit: 0
      template:
        spec:
          restartPolicy: Never
          terminationGracePeriodSeconds: 1
          containers:
          - name: train
            image: busybox:1
            command: [sh, -c, "sleep 600"]
            resources: {limits: {nvidia.com/gpu: 1}}
    """


def test_kueue_admits_one_gang_and_says_why_the_other_waits(
    objects: dynamic.DynamicClient, core: client.CoreV1Api, api: client.ApiClient
) -> None:
    batch = client.BatchV1Api(api)
    for queue in QUEUES:
        create(objects, queue)
    create(objects, A_GANG % "first")
    eventually(lambda: [pod.status.phase for pod in pods_of(core, "job-name=first")] == ["Running"] * 2)
    create(objects, A_GANG % "second")
    reason = eventually(lambda: reason_of(objects, "second"))
    assert "insufficient unused quota for nvidia.com/gpu in flavor l4, 2 more needed" in reason
    assert batch.read_namespaced_job("second", "default").spec.suspend
    assert pods_of(core, "job-name=second") == []
    # Room for the second comes with the first one's end.
    batch.delete_namespaced_job("first", "default", propagation_policy="Background")
    eventually(lambda: [pod.status.phase for pod in pods_of(core, "job-name=second")] == ["Running"] * 2)
    batch.delete_namespaced_job("second", "default", propagation_policy="Background")


def reason_of(objects: dynamic.DynamicClient, job: str) -> str | None:
    """Why Kueue does not admit the job, once it has said so."""
    workloads = objects.resources.get(api_version=KUEUE, kind="Workload").get(namespace="default").to_dict()["items"]
    for workload in workloads:
        if workload["metadata"]["ownerReferences"][0]["name"] == job:
            for one in workload.get("status", {}).get("conditions", []):
                if one["type"] == "QuotaReserved" and one["status"] == "False":
                    return str(one["message"])
    return None


def test_kueue_looks_at_no_pod_without_a_queue(core: client.CoreV1Api) -> None:
    pod = client.V1Pod(
        metadata=client.V1ObjectMeta(name="alone"),
        spec=client.V1PodSpec(
            restart_policy="Never",
            containers=[client.V1Container(name="main", image="busybox:1", command=["true"])],
        ),
    )
    made = core.create_namespaced_pod("default", pod)
    assert made.spec.scheduling_gates is None
    eventually(lambda: core.read_namespaced_pod("alone", "default").status.phase == "Succeeded")


def test_they_run_as_processes_of_the_sandbox_on_loopback_alone(sandbox: Sandbox) -> None:
    components = sandbox.describe()["components"]
    assert {name: components.get(name) for name in WITH_PROCESSES} == dict.fromkeys(WITH_PROCESSES, True)
    assert sorted(engine_processes()) == WITH_PROCESSES
    addresses = {
        connection.laddr.ip
        for process in engine_processes().values()
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert addresses == {"127.0.0.1"}


def test_what_an_engine_needs_comes_with_it() -> None:
    assert with_needed(["trainer"]) == ("jobset", "trainer")
    with pytest.raises(ValueError, match="no engine is named volcano; there are jobset, trainer, kueue"):
        with_needed(["volcano", "kueue"])  # type: ignore[list-item]
