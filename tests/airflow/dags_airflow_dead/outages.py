"""The DAGs of test_airflow_dead.py: trainings whose Airflow dies, on pools of each kind."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import DAG

from airflow_gpu_provider import EksGpuPool, GkeGpuPool, GpuPodOperator, KubernetesGpuPool, gpu_nodes
from airflow_gpu_provider.pools import GpuPool
from tests.airflow.retries import AGAIN

CLUSTER = os.environ.get("GPU_SANDBOX_CLUSTER", "k8s-ml")


def on_eks(name: str, **fields: Any) -> EksGpuPool:
    region = os.environ.get("GPU_SANDBOX_REGION", "us-west-2")
    return EksGpuPool(
        name=name, cluster_name=CLUSTER, region=region, instance_types=("g6.xlarge",), max_nodes=1, **fields
    )


def on_gke(name: str, **fields: Any) -> GkeGpuPool:
    return GkeGpuPool(
        name=name,
        cluster_name=CLUSTER,
        project_id=os.environ.get("GPU_SANDBOX_PROJECT", "sandbox-project"),
        location=os.environ.get("GPU_SANDBOX_LOCATION", "us-central1"),
        machine_types=("g2-standard-4",),
        max_nodes=1,
        **fields,
    )


def training(dag_id: str, pool: GpuPool, command: str) -> None:
    with DAG(dag_id, schedule=None, start_date=datetime(2026, 1, 1), default_args=AGAIN), gpu_nodes(pool, gpus=1):
        GpuPodOperator(
            task_id="train",
            image="busybox:1.36",
            cmds=["sh", "-c", command],
            retries=0,
            on_preemption="fail",
            termination_grace_period=1,
        )


# Their Airflow stays away for longer than max_runtime.
for_good = timedelta(minutes=20)
training("dead_eks", on_eks("dead-eks", max_runtime=for_good, zones=("us-west-2a",)), "exec sleep 3600")
training("dead_gke", on_gke("dead-gke", max_runtime=for_good, node_locations=("us-central1-a",)), "exec sleep 3600")
# Somebody gives it ten minutes more while it trains.
training("dead_extended", on_eks("dead-extended", max_runtime=for_good, zones=("us-west-2c",)), "exec sleep 3600")
# No cloud ends these machines, so it is the kubelet that ends the pods, in real time.
no_cloud: dict[str, Any] = {"max_runtime": timedelta(minutes=2), "max_nodes": 1, "gpus_per_node": 1}
training("dead_named", KubernetesGpuPool(name="dead-named", nodes=["dead-rack"], **no_cloud), "exec sleep 3600")
karpenter: dict[str, Any] = {
    "provisioner": "karpenter",
    "node_selector_labels": {"karpenter.sh/nodepool": "dead-karpenter"},
}
training("dead_karpenter", KubernetesGpuPool(name="dead-karpenter", **karpenter, **no_cloud), "exec sleep 3600")
# Its Airflow comes back; somebody then tells the pod that it has trained enough.
training(
    "comes_back",
    on_eks("comes-back", max_runtime=timedelta(hours=24), zones=("us-west-2b",)),
    "step=0; until test -e /tmp/enough; do step=$((step + 1)); echo step $step; sleep 0.5; done; echo trained",
)
