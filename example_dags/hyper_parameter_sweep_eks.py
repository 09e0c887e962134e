"""A hyper-parameter sweep: twenty trainings on four GPUs, and the best of them.

Five learning rates times four seeds are twenty pods of one GPU each; the pool has one machine with four. Four pods
train at a time and the others wait in the triggerer for a GPU to become free: they are queued, not late, and hold no
worker. When the last has ended the machine goes.

Set up as in nightly_training_eks.py.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import DAG, Param, task

from airflow_gpu_provider import EksGpuPool, GpuPodOperator, gpu_nodes

sweep_gpu = EksGpuPool(
    name="sweep-gpu",
    cluster_name="{{ var.value.get('gpu_cluster', 'k8s-ml') }}",
    region="{{ var.value.get('gpu_region', 'us-west-2') }}",
    instance_types=["g6.12xlarge"],  # four L4 GPUs
    capacity_types=["SPOT", "ON_DEMAND"],
    max_nodes=1,
    max_runtime=timedelta(hours=6),
)

with DAG(
    "hyper_parameter_sweep_eks",
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    params={
        "epochs": Param(30, type="integer", minimum=1),
        "rates": Param([0.0003, 0.001, 0.003, 0.01, 0.03], type="array"),
        "seeds": Param([0, 1, 2, 3], type="array"),
    },
    doc_md=__doc__,
    tags=["gpu", "eks"],
):

    @task
    def trials(params: dict[str, Any] | None = None) -> list[list[str]]:
        """Return the arguments of each training."""
        assert params is not None
        return [
            ["--learning-rate", str(rate), "--seed", str(seed), "--epochs", str(params["epochs"])]
            for rate in params["rates"]
            for seed in params["seeds"]
        ]

    @task
    def best(results: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the most accurate training."""
        return max(results, key=lambda result: float(result["accuracy"]))

    with gpu_nodes(sweep_gpu, gpus=4):
        train = GpuPodOperator.partial(
            task_id="train",
            gpus=1,
            image="{{ var.value.get('train_image', 'train-digits:1') }}",
            cmds=["python", "/app/train.py"],
            do_xcom_push=True,
        ).expand(arguments=trials())
    best(train.output)
