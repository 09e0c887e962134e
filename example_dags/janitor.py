"""A janitor for GPU pools: every half hour it finds, reports and releases machines without demand.

Nights end at zero without it, also where Airflow skips their scale-down (`dagrun_timeout`, a run that was deleted): the
triggers of tasks that wait see to that. It is for what nobody was left to end. Airflow is asked whether a run is over;
demand of another Airflow in the same cluster, and pods without a run, are left alone.

Name one pool for each cluster and connection, and each with `manage="scale"`: the others that this package has used
there are found in the cluster.
In the morning `doctor` says what would stop the coming night; `status` says what there is, and what it costs.

The Variables are those of `nightly_training_eks.py`.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_gpu_provider import EksGpuPool, GpuPoolDoctorOperator, GpuPoolStatusOperator, ReapGpuPoolsOperator

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
    "janitor",
    schedule="*/30 * * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    doc_md=__doc__,
    tags=["gpu"],
):
    # A retry continues where it stopped.
    ReapGpuPoolsOperator(task_id="reap", gpu_pools=[train_gpu], retries=2, retry_delay=timedelta(minutes=1))

    # Beside it, and not after it: leftovers keep neither the doctor nor the status from being told.
    GpuPoolDoctorOperator(task_id="doctor", gpu_pools=[train_gpu])
    GpuPoolStatusOperator(task_id="status", gpu_pools=[train_gpu])
