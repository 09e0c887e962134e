"""One training for each day of data: a partition of the data starts it, and names the partition of the model.

The task that writes a day of data has the day as its partition key. Each key starts a run of its own, so that a day
that comes late, or again, is trained on its own; runs of several days share the pool, one after the other. Backfill a
day by an event with its key: Assets > digits by day > Create Asset Event.

To run it on a cluster of yours:

1. Build the image and push it: `docker build -t REGISTRY/train-digits:1 example_dags/train_digits`.
2. Make a PersistentVolumeClaim `checkpoints` that pods of every node can mount (ReadWriteMany, of EFS or FSx).
3. Set what differs, as Airflow Variables (or as environment, `AIRFLOW_VAR_GPU_CLUSTER=...`):

       gpu_cluster    the EKS cluster              default: k8s-ml
       gpu_region     its region                   default: us-west-2
       train_image    the image just pushed        default: train-digits:1

4. Have a connection `aws_default` that may manage the cluster's node groups, and bind docs/rbac/full.yaml to it.
5. Let the DAG that writes the data have `schedule=CronPartitionTimetable(...)` and
   `outlets=[Asset(name="digits by day", uri="s3://k8s-ml/digits-by-day")]`: its partition keys come here.
6. Replace the training by yours, which reads `TRAIN_DATA`. This one has digits of its own, always the same.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG, Asset, Param, PartitionedAssetTimetable
from kubernetes.client import models as k8s

from airflow_gpu_provider import EksGpuPool, GpuPodOperator, gpu_nodes

data = Asset(name="digits by day", uri="s3://k8s-ml/digits-by-day")
model = Asset("digits model by day")

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

with DAG(
    "partitioned_training_eks",
    schedule=PartitionedAssetTimetable(assets=data),
    start_date=datetime(2026, 1, 1),
    catchup=False,
    params={"epochs": Param(30, type="integer", minimum=1)},
    doc_md=__doc__,
    tags=["gpu", "eks"],
):
    with gpu_nodes(train_gpu, gpus=1):
        GpuPodOperator(
            task_id="train",
            gpus=1,
            image="{{ var.value.get('train_image', 'train-digits:1') }}",
            cmds=["python", "/app/train.py"],
            env_vars={
                "TRAIN_EPOCHS": "{{ params.epochs }}",
                "TRAIN_DATA": "s3://k8s-ml/digits-by-day/{{ dag_run.partition_key }}",
            },
            volumes=[
                k8s.V1Volume(
                    name="checkpoints",
                    persistent_volume_claim=k8s.V1PersistentVolumeClaimVolumeSource(claim_name="checkpoints"),
                )
            ],
            volume_mounts=[k8s.V1VolumeMount(name="checkpoints", mount_path="/checkpoints")],
            checkpoint="/checkpoints",
            # An event of it has the run's partition key; the result in XCom has the model's path.
            outlets=[model],
            do_xcom_push=True,
        )
