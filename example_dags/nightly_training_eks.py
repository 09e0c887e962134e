"""Nightly training on GPUs that exist only while it runs.

Every night at 02:00 UTC the pool grows from nothing to one g6.xlarge, a pod trains on it, and the machine is
gone seconds after the pod has ended. Whatever fails, the machine is released, and a failed night is red.

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

from airflow.sdk import DAG, Param

from airflow_gpu_provider import EksGpuPool, GpuPodOperator, gpu_nodes

# What the machines are. A spec is data: nothing is asked of AWS before a task needs it.
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
    "nightly_training_eks",
    schedule="0 2 * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    params={
        "epochs": Param(30, type="integer", minimum=1),
        "seconds_per_epoch": Param(0, type="number", description="slow down, to watch it"),
        "fail_at_epoch": Param(0, type="integer", description="fail there, to see a red night; 0: never"),
    },
    doc_md=__doc__,
    tags=["gpu", "eks"],
):
    # Before the block's tasks: nodes and device plugin. After them, whatever happened: scale to zero.
    with gpu_nodes(train_gpu, gpus=1):
        train = GpuPodOperator(
            task_id="train",
            gpus=1,
            image="{{ var.value.get('train_image', 'train-digits:1') }}",
            cmds=["python", "/app/train.py"],
            env_vars={
                "TRAIN_EPOCHS": "{{ params.epochs }}",
                "TRAIN_SECONDS_PER_EPOCH": "{{ params.seconds_per_epoch }}",
                "TRAIN_FAIL_AT_EPOCH": "{{ params.fail_at_epoch }}",
                # Mount a volume there, and a training that lost its machine resumes where it stopped.
                "CHECKPOINT_DIR": "/tmp/checkpoints",
            },
            # The accuracy comes back as XCom.
            do_xcom_push=True,
        )
