"""More time, or money, for a run whose nodes would go: trigger it, or use the buttons of the page GPU pools.

It asks for the pool, the run, and the hours; or, in place of these, for what the run may cost in all. For money, and
beyond the pool's `max_runtime`, it needs a reason, which `airflow gpu status` tells then. Where a pod that runs ends
before all the same, it changes nothing, and the log has when; `pods_may_end` extends it for what starts later.

Who may trigger this DAG may spend what `dag_ids` and `most_hours` allow, on others' runs, too.

The Variables are those of `nightly_training_eks.py`.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from airflow_gpu_provider import EksGpuPool, ExtendGpuPoolOperator

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
    "extend_run",
    schedule=None,
    doc_md=__doc__,
    tags=["gpu"],
    params={
        "pool": Param("train-gpu", type="string"),
        "dag_id": Param("nightly_training_eks", type="string"),
        "run_id": Param("", type="string", title="Run ID"),
        "hours": Param(1.0, type=["number", "null"], exclusiveMinimum=0),
        "max_cost": Param(None, type=["number", "null"], exclusiveMinimum=0, title="In place of hours: max_cost"),
        "reason": Param("", type=["string", "null"]),
        "pods_may_end": Param(False, type="boolean", title="Although a pod that runs ends before"),
    },
):
    ExtendGpuPoolOperator(
        task_id="extend",
        gpu_pools=[train_gpu],
        pool_name="{{ params.pool }}",
        dag_id_of_run="{{ params.dag_id }}",
        run_id="{{ params.run_id }}",
        hours="{{ params.hours or '' }}",
        max_cost="{{ params.max_cost or '' }}",
        reason="{{ params.reason or '' }}",
        pods_may_end="{{ params.pods_may_end }}",
        dag_ids=["nightly_*"],  # whose runs may have more
        most_hours=6,  # all extensions of a run together
        retries=0,
    )
