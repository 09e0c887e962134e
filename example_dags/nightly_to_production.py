"""From new data to a model in production, by way of a training on a GPU and a person's approval.

New data in `s3://k8s-ml/digits` starts the run. A training with a checkpoint writes a model; a comparison with the
model in production ends the run, green, if the new one is no better; a person approves it under Browse > Required
Actions. Then the model is an asset, with its accuracy and the cost of its training as metadata, and what it starts is
the deployment. The GPU goes as soon as the training has ended, not when somebody has answered.

To run it on a cluster of yours:

1. Build the image and push it: `docker build -t REGISTRY/train-digits:1 example_dags/train_digits`.
2. Make a PersistentVolumeClaim `checkpoints` that pods of every node can mount (ReadWriteMany, of EFS or FSx).
3. Set what differs, as Airflow Variables (or as environment, `AIRFLOW_VAR_GPU_CLUSTER=...`):

       gpu_cluster    the EKS cluster              default: k8s-ml
       gpu_region     its region                   default: us-west-2
       train_image    the image just pushed        default: train-digits:1

4. Have a connection `aws_default` that may manage the cluster's node groups, and bind docs/rbac/full.yaml to it.
5. Replace the training by yours, which reads the new data. This one has digits of its own, always the same: its second
   run is no better than its first, and ends at `evaluate`.
6. Let the DAG that writes the data have `outlets=[Asset("s3://k8s-ml/digits")]`, and the one that deploys the model
   `schedule=[Asset("digits_model")]`.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG, Asset, Param, task
from airflow.sdk.exceptions import AirflowSkipException
from kubernetes.client import models as k8s

from airflow_gpu_provider import EksGpuPool, GpuPodOperator, gpu_nodes
from airflow_gpu_provider.notifications import GpuNightNotifier

data = Asset("s3://k8s-ml/digits")
model = Asset("digits_model")

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


def announce(night: Any) -> None:
    """Write the night's two lines into the log; a chat gets them from `GpuNightNotifier(SlackWebhookNotifier(...))`."""
    logging.getLogger(__name__).info("%s", night.in_plain_words)


with DAG(
    "nightly_to_production",
    schedule=[data],
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    params={"epochs": Param(30, type="integer", minimum=1)},
    on_success_callback=GpuNightNotifier(announce),
    on_failure_callback=GpuNightNotifier(announce),
    doc_md=__doc__,
    tags=["gpu", "eks"],
):
    with gpu_nodes(train_gpu, gpus=1):
        train = GpuPodOperator(
            task_id="train",
            gpus=1,
            image="{{ var.value.get('train_image', 'train-digits:1') }}",
            cmds=["python", "/app/train.py"],
            env_vars={"TRAIN_EPOCHS": "{{ params.epochs }}"},
            volumes=[
                k8s.V1Volume(
                    name="checkpoints",
                    persistent_volume_claim=k8s.V1PersistentVolumeClaimVolumeSource(claim_name="checkpoints"),
                )
            ],
            volume_mounts=[k8s.V1VolumeMount(name="checkpoints", mount_path="/checkpoints")],
            checkpoint="/checkpoints",
            do_xcom_push=True,
        )

    @task(inlets=[model])
    def evaluate(trained: dict[str, Any], *, inlet_events: Any) -> dict[str, Any]:
        """Compare the new model with the one in production, and end the run where it is no better."""
        earlier = inlet_events[model]
        best = float(earlier[-1].extra["accuracy"]) if len(earlier) else 0.0
        if trained["accuracy"] <= best:
            raise AirflowSkipException(f"{trained['accuracy']} is no better than {best}, which is in production.")
        return {"accuracy": trained["accuracy"], "in_production": best, "file": trained["model"]}

    approve = ApprovalOperator(
        task_id="approve",
        subject="Put the new model of digits into production?",
        body="""{% set found = ti.xcom_pull(task_ids="evaluate") -%}
Its accuracy is {{ found["accuracy"] }}; that of the model in production is {{ found["in_production"] }}.""",
        defaults="Reject",
        response_timeout=timedelta(hours=12),
    )

    @task(outlets=[model])
    def publish(evaluated: dict[str, Any], *, ti: Any, outlet_events: Any) -> None:
        """Make the model an asset, with its accuracy and the cost of its training."""
        bill = ti.xcom_pull(task_ids="train-gpu.scale_down", key="usage") or {"cost": {}, "currency": None}
        outlet_events[model].extra = {**evaluated, "cost": bill["cost"].get("total"), "currency": bill["currency"]}

    evaluated = evaluate(train.output)
    evaluated >> approve >> publish(evaluated)
