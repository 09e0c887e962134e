"""Train again, with a lower rate of learning, until the model is good: a task loop of Airflow 3.4 on one GPU.

The block is around the loop, so that the node stays for all iterations and is gone seconds after the last one. Each
iteration has a checkpoint of its own.

To run it on a cluster of yours:

1. Build the image and push it: `docker build -t REGISTRY/train-digits:1 example_dags/train_digits`.
2. Set what differs, as Airflow Variables (or as environment, `AIRFLOW_VAR_GPU_CLUSTER=...`):

       gpu_cluster    the EKS cluster              default: k8s-ml
       gpu_region     its region                   default: us-west-2
       train_image    the image just pushed        default: train-digits:1

3. Have a connection `aws_default` that may manage the cluster's node groups.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import DAG, task_group

from airflow_gpu_provider import EksGpuPool, GpuPodOperator, gpu_nodes

GOOD = 0.95
RATES = ("3.0", "0.3", "0.003")

train_gpu = EksGpuPool(
    name="train-gpu",
    cluster_name="{{ var.value.get('gpu_cluster', 'k8s-ml') }}",
    region="{{ var.value.get('gpu_region', 'us-west-2') }}",
    instance_types=["g6.xlarge"],
    max_nodes=1,
    # After this time the machines are released, even with a training on them.
    max_runtime=timedelta(hours=6),
    price_per_hour=0.8048,
    node_labels={"role": "train-gpu"},
)


@task_group
def attempt() -> None:
    GpuPodOperator(
        task_id="train",
        gpus=1,
        image="{{ var.value.get('train_image', 'train-digits:1') }}",
        cmds=["python", "/app/train.py"],
        arguments=["--learning-rate", "{{ params.rates[loop.index] }}"],
        do_xcom_push=True,
    )


def good(*, loop: Any) -> bool:
    return bool(loop.result["accuracy"] >= GOOD)


with (
    DAG(
        "train_until_good_eks",
        schedule=None,
        start_date=datetime(2026, 1, 1),
        params={"rates": list(RATES)},
        doc_md=__doc__,
        tags=["gpu", "eks"],
    ),
    gpu_nodes(train_gpu, gpus=1),
):
    attempt.loop(max_iterations=len(RATES), until=good)
