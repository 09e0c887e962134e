"""A Deployment with a GPU limit on GKE: quota first, one of several GPU types, and a driver image of one's own.

Ensure compares the project's GPU quotas with what is missing before it creates anything: a type without room is passed
over, and where none has room the task fails with the quota's name. The driver comes by a DaemonSet. Inside of the block
any operator can put work on the pool: `placement` gives its manifest node selector, tolerations and limits.

To run it on a cluster of yours:

1. Set what differs, as Airflow Variables (or as environment, `AIRFLOW_VAR_GPU_CLUSTER=...`):

       gpu_project     the Google Cloud project             default: sandbox-project
       gpu_location    the cluster's zone or region         default: us-central1
       gpu_cluster     the GKE cluster                      default: k8s-ml
       driver_image    a driver installer of yours          default: registry.example.com/nvidia-driver-installer:580
       serving_image   what the Deployment runs             default: nvidia/cuda:12.8.1-base-ubuntu24.04

2. Have a connection `google_cloud_default` that may manage the cluster's node pools (docs/iam-gke.md), and one named
   `kubernetes_default` to the same cluster: the Kubernetes provider's operators speak to that.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta

from airflow.providers.cncf.kubernetes.operators.resource import (
    KubernetesCreateResourceOperator,
    KubernetesDeleteResourceOperator,
)
from airflow.sdk import DAG, task

from airflow_gpu_provider import GkeGpuPool, gpu_nodes, placement

NAMESPACE = "default"
APP = {"app": "gpu-serving"}

serving_gpu = GkeGpuPool(
    name="serving-gpu",
    project_id="{{ var.value.get('gpu_project', 'sandbox-project') }}",
    location="{{ var.value.get('gpu_location', 'us-central1') }}",
    cluster_name="{{ var.value.get('gpu_cluster', 'k8s-ml') }}",
    # In order of preference: an L4, else an N1 machine with a T4.
    machine_types=["g2-standard-4", "n1-standard-4"],
    accelerator={"type": "nvidia-tesla-t4"},
    driver="daemonset",
    max_nodes=1,
    max_runtime=timedelta(hours=2),
)

on_gpus = placement(serving_gpu, gpus=1)
DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "gpu-serving", "namespace": NAMESPACE},
    "spec": {
        "replicas": 1,
        "selector": {"matchLabels": APP},
        "template": {
            "metadata": {"labels": APP},
            "spec": {
                **on_gpus.pod_spec,
                "terminationGracePeriodSeconds": 5,
                "containers": [
                    {
                        "name": "serve",
                        "image": "{{ var.value.get('serving_image', 'nvidia/cuda:12.8.1-base-ubuntu24.04') }}",
                        "command": ["sh", "-c", "nvidia-smi -L; exec sleep infinity"],
                        "resources": {"limits": on_gpus.limits},
                    }
                ],
            },
        },
    },
}

with DAG(
    "deployment_on_gpus_gke",
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    doc_md=__doc__,
    tags=["gpu", "gke"],
):

    @task
    def until_ready() -> str:
        """Wait until the pod is ready; return the name of its node."""
        from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
        from kubernetes.watch import Watch

        core = KubernetesHook(conn_id="kubernetes_default").core_v1_client
        ours = {"label_selector": "app=gpu-serving", "timeout_seconds": 1800}
        for event in Watch().stream(core.list_namespaced_pod, NAMESPACE, **ours):
            conditions = event["object"].status.conditions or ()
            if any(each.type == "Ready" and each.status == "True" for each in conditions):
                return str(event["object"].spec.node_name)
        raise TimeoutError("gpu-serving has had no ready pod within half an hour")

    @task
    def until_gone() -> None:
        """Wait until the pods have ended: nodes with pods on them are not released."""
        from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
        from kubernetes.watch import Watch

        list_pods = KubernetesHook(conn_id="kubernetes_default").core_v1_client.list_namespaced_pod
        ours = {"label_selector": "app=gpu-serving"}
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

    driver = {"driver_image": "{{ var.value.get('driver_image', 'registry.example.com/nvidia-driver-installer:580') }}"}
    with gpu_nodes(serving_gpu, gpus=1, device_plugin_args=driver):
        deploy = KubernetesCreateResourceOperator(task_id="deploy", yaml_conf=json.dumps(DEPLOYMENT))
        undeploy = KubernetesDeleteResourceOperator(task_id="undeploy", yaml_conf=json.dumps(DEPLOYMENT))
        gone = until_gone()
        # Put the tasks that use the Deployment between these two. It is deleted even if they fail.
        deploy.as_setup() >> until_ready() >> undeploy.as_teardown(setups=deploy)
        undeploy >> gone.as_teardown(setups=deploy)
