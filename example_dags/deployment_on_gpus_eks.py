"""A Deployment of ten one-GPU pods, spread over the zones, on spot machines that exist only meanwhile.

The pool has two node groups in each zone of the cluster, one on spot and one on demand: where spot is out of stock, the
rest comes on demand. Inside of the block any operator can put work on the pool: `placement` gives its manifest node
selector, tolerations and limits. Here it is the Kubernetes provider's own, and a Deployment.

To run it on a cluster of yours:

1. Set what differs, as Airflow Variables (or as environment, `AIRFLOW_VAR_GPU_CLUSTER=...`):

       gpu_cluster    the EKS cluster              default: k8s-ml
       gpu_region     its region                   default: us-west-2
       fleet_image    what the pods run            default: nvidia/cuda:12.8.1-base-ubuntu24.04

2. Have a connection `aws_default` that may manage the cluster's node groups (docs/iam.md), and one named
   `kubernetes_default` to the same cluster: the Kubernetes provider's operators speak to that.
"""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime, timedelta

from airflow.providers.cncf.kubernetes.operators.resource import (
    KubernetesCreateResourceOperator,
    KubernetesDeleteResourceOperator,
)
from airflow.sdk import DAG, task

from airflow_gpu_provider import EksGpuPool, gpu_nodes, placement

NAMESPACE = "default"
REPLICAS = 10
APP = {"app": "gpu-fleet"}

gpu_fleet = EksGpuPool(
    name="gpu-fleet",
    cluster_name="{{ var.value.get('gpu_cluster', 'k8s-ml') }}",
    region="{{ var.value.get('gpu_region', 'us-west-2') }}",
    instance_types=["g6.xlarge"],
    capacity_types=["SPOT", "ON_DEMAND"],
    taints=["nvidia.com/gpu=true:NoSchedule"],
    max_nodes=REPLICAS,
    max_runtime=timedelta(hours=2),
    price_per_hour={"SPOT": 0.3600, "ON_DEMAND": 0.8048},
)

on_gpus = placement(gpu_fleet, gpus=1)
DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "gpu-fleet", "namespace": NAMESPACE},
    "spec": {
        "replicas": REPLICAS,
        "selector": {"matchLabels": APP},
        "template": {
            "metadata": {"labels": APP},
            "spec": {
                **on_gpus.pod_spec,
                "terminationGracePeriodSeconds": 5,
                "topologySpreadConstraints": [
                    {
                        "topologyKey": "topology.kubernetes.io/zone",
                        "maxSkew": 1,
                        # Where a zone has no machines left, the pods run in the others.
                        "whenUnsatisfiable": "ScheduleAnyway",
                        "labelSelector": {"matchLabels": APP},
                    }
                ],
                "containers": [
                    {
                        "name": "worker",
                        "image": "{{ var.value.get('fleet_image', 'nvidia/cuda:12.8.1-base-ubuntu24.04') }}",
                        "command": ["sh", "-c", "nvidia-smi -L; exec sleep infinity"],
                        "resources": {"limits": on_gpus.limits},
                    }
                ],
            },
        },
    },
}


with DAG(
    "deployment_on_gpus_eks",
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    doc_md=__doc__,
    tags=["gpu", "eks"],
):

    @task
    def until_ready() -> dict[str, int]:
        """Wait until every pod is ready; return how many there are in each zone."""
        from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
        from kubernetes.watch import Watch

        hook = KubernetesHook(conn_id="kubernetes_default")
        list_deployments = hook.apps_v1_client.list_namespaced_deployment
        this = {"field_selector": "metadata.name=gpu-fleet", "timeout_seconds": 1800}
        for event in Watch().stream(list_deployments, NAMESPACE, **this):
            if event["object"].status.ready_replicas == REPLICAS:
                break
        else:
            raise TimeoutError(f"gpu-fleet has not had {REPLICAS} ready pods within half an hour")
        nodes = {node.metadata.name: node for node in hook.core_v1_client.list_node().items}
        pods = hook.core_v1_client.list_namespaced_pod(NAMESPACE, label_selector="app=gpu-fleet").items
        labels = (nodes[pod.spec.node_name].metadata.labels for pod in pods)
        return dict(Counter(each["topology.kubernetes.io/zone"] for each in labels))

    @task
    def until_gone() -> None:
        """Wait until the pods have ended: nodes with pods on them are not released."""
        from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
        from kubernetes.watch import Watch

        list_pods = KubernetesHook(conn_id="kubernetes_default").core_v1_client.list_namespaced_pod
        ours = {"label_selector": "app=gpu-fleet"}
        found = list_pods(NAMESPACE, **ours)
        left = {pod.metadata.name for pod in found.items}
        since = {"resource_version": found.metadata.resource_version, "timeout_seconds": 600}
        for event in Watch().stream(list_pods, NAMESPACE, **ours, **since) if left else ():
            if event["type"] == "DELETED":
                left.discard(event["object"].metadata.name)
            if not left:
                break
        if left:
            raise TimeoutError(f"{', '.join(sorted(left))} did not end within ten minutes")

    with gpu_nodes(gpu_fleet, gpus=REPLICAS):
        deploy = KubernetesCreateResourceOperator(task_id="deploy", yaml_conf=json.dumps(DEPLOYMENT))
        undeploy = KubernetesDeleteResourceOperator(task_id="undeploy", yaml_conf=json.dumps(DEPLOYMENT))
        gone = until_gone()
        # Put the tasks that use the fleet between these two. The Deployment is deleted even if they fail.
        deploy.as_setup() >> until_ready() >> undeploy.as_teardown(setups=deploy)
        undeploy >> gone.as_teardown(setups=deploy)
