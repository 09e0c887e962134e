"""The same night as nightly_training_eks.py, put together from the four operators by hand.

Prefer the block: `gpu_nodes` makes these tasks and arrows, with two more tasks, `begin` and `witness`, for nights on
which Ensure's worker is killed or somebody marks the run (docs/blocks.md). Written out, for DAGs that need another
shape, this is what must be right:

- Ensure is a *setup* and ScaleDown its *teardown*, so that the machines go whatever fails in between, and so that
  clearing the training makes the machines come back for it.
- `on_failure_fail_dagrun=True`: a scale-down that fails leaves GPUs running, and must not be green.
- `done`, a leaf of its own after the training: a DAG run's state comes from its leaves, and with the teardown as the
  only leaf a failed training would be a green night.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

from airflow_gpu_provider import (
    EksGpuPool,
    EnsureGpuPoolOperator,
    GpuPodOperator,
    InstallDevicePluginOperator,
    ScaleDownSensor,
)

train_gpu = EksGpuPool(
    name="train-gpu",
    cluster_name="{{ var.value.get('gpu_cluster', 'k8s-ml') }}",
    region="{{ var.value.get('gpu_region', 'us-west-2') }}",
    instance_types=["g6.xlarge"],
    max_nodes=1,
    max_runtime=timedelta(hours=6),
    price_per_hour=0.8048,
    node_labels={"role": "train-gpu"},
)

with DAG(
    "nightly_training_eks_tasks",
    schedule="0 2 * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    doc_md=__doc__,
    tags=["gpu", "eks"],
):
    ensure = EnsureGpuPoolOperator(task_id="ensure", gpu_pool=train_gpu, gpus=1).as_setup()
    device_plugin = InstallDevicePluginOperator(task_id="device_plugin", gpu_pool=train_gpu)
    train = GpuPodOperator(
        task_id="train",
        gpu_pool=train_gpu,
        gpus=1,
        image="{{ var.value.get('train_image', 'train-digits:1') }}",
        cmds=["python", "/app/train.py"],
        env_vars={"CHECKPOINT_DIR": "/tmp/checkpoints"},
        do_xcom_push=True,
    )
    scale_down = ScaleDownSensor(task_id="scale_down", gpu_pool=train_gpu)
    done = EmptyOperator(task_id="done")

    ensure >> device_plugin >> train >> done
    train >> scale_down.as_teardown(setups=ensure, on_failure_fail_dagrun=True)
