"""Kueue's admission check by ProvisioningRequests on GKE: the machines of a Job are there before its pods are made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes import client, config, dynamic

from gpu_sandbox import SandboxProcess
from sandbox.tests.autoscaling import REQUESTS, Gke
from tests.engines.test_engines import KUEUE, create
from tests.sandbox.running import eventually

pytest.importorskip("google.cloud.container_v1", reason="Google's libraries are not installed")
LABEL = "autoscaling.gke.io/provisioning-request"
QUEUE = """
    apiVersion: kueue.x-k8s.io/v1beta2
    kind: ResourceFlavor
    metadata: {name: queued}
    spec:
      nodeLabels: {role: queued}
---
    apiVersion: kueue.x-k8s.io/v1beta2
    kind: ProvisioningRequestConfig
    metadata: {name: queued}
    spec:
      provisioningClassName: queued-provisioning.gke.io
      managedResources: [nvidia.com/gpu]
      podSetUpdates:
        nodeSelector:
        - key: autoscaling.gke.io/provisioning-request
          valueFromProvisioningClassDetail: ResizeRequestName
      retryStrategy: {backoffLimitCount: 1, backoffBaseSeconds: 1, backoffMaxSeconds: 1}
---
    apiVersion: kueue.x-k8s.io/v1beta2
    kind: AdmissionCheck
    metadata: {name: queued}
    spec:
      controllerName: kueue.x-k8s.io/provisioning-request
      parameters: {apiGroup: kueue.x-k8s.io, kind: ProvisioningRequestConfig, name: queued}
---
    apiVersion: kueue.x-k8s.io/v1beta2
    kind: ClusterQueue
    metadata: {name: queued}
    spec:
      namespaceSelector: {}
      admissionChecksStrategy: {admissionChecks: [{name: queued}]}
      resourceGroups:
      - coveredResources: [nvidia.com/gpu]
        flavors: [{name: queued, resources: [{name: nvidia.com/gpu, nominalQuota: 3}]}]
---
    apiVersion: kueue.x-k8s.io/v1beta2
    kind: LocalQueue
    metadata: {name: queued, namespace: default}
    spec: {clusterQueue: queued}
"""
GANG = """
    apiVersion: batch/v1
    kind: Job
    metadata:
      name: %s
      labels: {kueue.x-k8s.io/queue-name: queued}
      annotations: {provreq.kueue.x-k8s.io/maxRunDurationSeconds: "3600"}
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
          tolerations: [{operator: Exists}]
          containers:
          - name: train
            image: busybox:1
            command: [sh, -c, "true"]
            resources: {limits: {nvidia.com/gpu: 1}}
"""


@pytest.fixture(scope="module")
def gke() -> Iterator[Gke]:
    """A cluster with Kueue, a node pool of at most three nodes that come by requests, and a queue with the check."""
    with SandboxProcess(platform="gke", clock="manual", cluster_name="provisioning", engines=("kueue",)) as sandbox:
        gke = Gke(sandbox)
        gke.node_pool("queued", autoscaling={"max_node_count": 3, "location_policy": "ANY"}, queued=True)
        yield gke


@pytest.fixture(scope="module")
def objects(gke: Gke) -> Iterator[dynamic.DynamicClient]:
    with config.new_client_from_config(gke.env["KUBECONFIG"]) as api:
        objects = dynamic.DynamicClient(api)
        for each in QUEUE.split("---"):
            create(objects, each)
        yield objects


def request_of(gke: Gke, job: str, attempt: int) -> str | None:
    """The name of the Job's request, once Kueue has made it."""
    names = [item["metadata"]["name"] for item in gke.call("GET", REQUESTS)["items"]]
    own = (name for name in names if name.startswith(f"job-{job}-") and name.endswith(f"-queued-{attempt}"))
    return next(own, None)


def workload(objects: dynamic.DynamicClient, job: str) -> dict[str, Any]:
    found = objects.resources.get(api_version=KUEUE, kind="Workload").get(namespace="default").to_dict()["items"]
    return next(each for each in found if each["metadata"]["name"].startswith(f"job-{job}-"))


def check(objects: dynamic.DynamicClient, job: str) -> dict[str, Any]:
    """The state of the Job's admission check."""
    found = workload(objects, job).get("status", {}).get("admissionChecks") or [{}]
    return dict(found[0])


def test_a_job_is_admitted_to_the_nodes_of_its_own_request(gke: Gke, objects: dynamic.DynamicClient) -> None:
    batch = client.BatchV1Api(objects.client)
    gke.sandbox.apply_faults({"stockouts": [{}]})
    create(objects, GANG % "train")
    name = eventually(lambda: request_of(gke, "train", 1))
    gke.sandbox.advance(minutes=1)
    eventually(lambda: check(objects, "train").get("message", "").startswith("Waiting for resources."))
    assert batch.read_namespaced_job("train", "default").spec.suspend

    gke.sandbox.clear_faults()
    while "Provisioned" not in gke.conditions(name) or gke.conditions(name)["Provisioned"][0] == "False":
        gke.sandbox.advance(10)
    own = gke.details(name)["ResizeRequestName"]
    eventually(lambda: not batch.read_namespaced_job("train", "default").spec.suspend)
    spec = batch.read_namespaced_job("train", "default").spec.template.spec
    assert spec.node_selector == {"role": "queued", LABEL: own}
    assert gke.gpu_nodes() == []
    gke.sandbox.advance(minutes=2)
    eventually(lambda: batch.read_namespaced_job("train", "default").status.succeeded == 2)
    pods = [pod for pod in gke.pods() if pod["metadata"]["name"].startswith("train-")]
    assert len({pod["spec"]["nodeName"] for pod in pods}) == 2
    assert [node["metadata"]["labels"][LABEL] for node in gke.gpu_nodes()] == [own, own]


def failure_of(gke: Gke, name: str) -> tuple[str, str]:
    """Let time pass until the request has failed: Kueue, which made it, goes by the machine's own clock."""
    while "Failed" not in gke.conditions(name):
        gke.sandbox.advance(10)
    return gke.conditions(name)["Failed"]


def test_a_request_that_fails_is_made_again_and_then_the_workload_is_deactivated(
    gke: Gke, objects: dynamic.DynamicClient
) -> None:
    gke.sandbox.advance(minutes=15)  # the nodes of the other test go
    gke.sandbox.apply_faults({"stockouts": [{"code": "PERMISSION_DENIED"}]})
    create(objects, GANG % "refused")
    first = eventually(lambda: request_of(gke, "refused", 1))
    assert failure_of(gke, first) == ("True", "PermissionDenied")
    # The next one finds the node pool backed off from, and fails after two minutes.
    second = eventually(lambda: request_of(gke, "refused", 2))
    assert failure_of(gke, second) == ("True", "NodepoolInBackoff")
    eventually(lambda: workload(objects, "refused")["spec"].get("active") is False)
    assert client.BatchV1Api(objects.client).read_namespaced_job("refused", "default").spec.suspend
