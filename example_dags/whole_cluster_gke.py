"""A whole GKE cluster for one night: created, used for a training on spot GPUs, and deleted.

The cluster comes and goes by the Google provider's own operators; the block stands between them. Two things make the
run's colour right, and nothing is left behind:

- `delete_cluster` is the teardown of `create_cluster`: it runs whatever becomes of the tasks in between. With
  `on_failure_fail_dagrun=True` a deletion that fails makes the run red.
- It comes after the block's scale-down, *beside* the block's last task, `done`: a run's state comes from its leaves.
  If `delete_cluster` came after `done`, it alone would decide, and a failed training would be a green night.

To run it in a project of yours:

1. Set what differs, as Airflow Variables (or as environment, `AIRFLOW_VAR_GPU_PROJECT=...`):

       gpu_project    the Google Cloud project     default: sandbox-project
       gpu_location   a zone or region             default: us-central1
       smoke_image    what the pod runs            default: nvidia/cuda:12.8.1-base-ubuntu24.04

2. Have a connection `google_cloud_default` that may create and delete clusters (roles/container.admin), and has the
   permissions of docs/iam/gke-full.json, which Ensure needs for the machines.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.providers.google.cloud.operators.kubernetes_engine import (
    GKECreateClusterOperator,
    GKEDeleteClusterOperator,
)
from airflow.sdk import DAG

from airflow_gpu_provider import GkeGpuPool, GpuPodOperator, gpu_nodes

CLUSTER = "gpu-night"
WHERE = {
    "project_id": "{{ var.value.get('gpu_project', 'sandbox-project') }}",
    "location": "{{ var.value.get('gpu_location', 'us-central1') }}",
}

night_gpu = GkeGpuPool(
    name="night-gpu",
    cluster_name=CLUSTER,
    **WHERE,
    # Four GPUs in one machine: a pod that asks for fewer leaves the others idle, and the task's log says at what cost.
    machine_types=["n1-standard-16"],
    accelerator={"type": "nvidia-tesla-t4", "count": 4},
    # At the price of preemptible machines, and unlike those they end by themselves when Airflow is gone for good.
    capacity_types=["SPOT"],
    driver="daemonset",
    max_nodes=2,
    max_runtime=timedelta(hours=2),
    price_per_hour={"SPOT": 0.74},
)

with DAG(
    "whole_cluster_gke",
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    doc_md=__doc__,
    tags=["gpu", "gke"],
) as dag:
    create_cluster = GKECreateClusterOperator(
        task_id="create_cluster",
        **WHERE,
        body={
            "name": CLUSTER,
            # The cluster's own pods need a machine that stays, as long as the cluster does: in a region one for each of
            # the cluster's zones, which GKE chooses. Not every region has a zone -a.
            "node_pools": [
                {"name": "system", "initial_node_count": 1, "config": {"machine_type": "e2-standard-2"}},
            ],
        },
    ).as_setup()

    with gpu_nodes(night_gpu, gpus=1) as block:
        GpuPodOperator(
            task_id="nvidia_smi",
            gpus=1,
            image="{{ var.value.get('smoke_image', 'nvidia/cuda:12.8.1-base-ubuntu24.04') }}",
            cmds=["nvidia-smi"],
        )

    delete_cluster = GKEDeleteClusterOperator(task_id="delete_cluster", cluster_name=CLUSTER, **WHERE)

    create_cluster >> block
    scale_down = dag.get_task("night-gpu.scale_down")
    scale_down >> delete_cluster.as_teardown(setups=create_cluster, on_failure_fail_dagrun=True)
