"""One training on two nodes that exist only while it runs.

The pool grows from nothing to two g6.xlarge of one zone, or to none: what came alone goes back, and the next zone is
tried. Then one pod runs on each, as one training. Where a spot machine is taken away all ranks end, the other machine
is kept, another one comes, and the training goes on from its checkpoint, in the same try.

To run it on a cluster of yours:

1. Build the image and push it: `docker build -t REGISTRY/train-trees:1 example_dags/train_trees`.
2. Make a PersistentVolumeClaim `checkpoints` that pods of every node can mount (ReadWriteMany, of EFS or FSx).
3. Set what differs, as Airflow Variables (or as environment, `AIRFLOW_VAR_GPU_CLUSTER=...`):

       gpu_cluster          the EKS cluster              default: k8s-ml
       gpu_region           its region                   default: us-west-2
       train_trees_image    the image just pushed        default: train-trees:1

4. Have a connection `aws_default` that may manage the cluster's node groups.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG, Param
from kubernetes.client import models as k8s

from airflow_gpu_provider import EksGpuPool, GpuPodOperator, gpu_nodes

two_gpus = EksGpuPool(
    name="two-gpus",
    cluster_name="{{ var.value.get('gpu_cluster', 'k8s-ml') }}",
    region="{{ var.value.get('gpu_region', 'us-west-2') }}",
    instance_types=["g6.xlarge"],
    capacity_types=["SPOT", "ON_DEMAND"],
    max_nodes=2,
    # After this time the machines are released, even with a training on them.
    max_runtime=timedelta(hours=6),
    price_per_hour=0.8048,
    node_labels={"role": "two-gpus"},
)

with DAG(
    "two_nodes",
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    params={
        "rounds": Param(30, type="integer", minimum=1),
        "seconds_per_round": Param(0, type="number", description="slow down, to watch it"),
        "fail_at_round": Param(0, type="integer", description="fail there, to see a red night; 0: never"),
    },
    doc_md=__doc__,
    tags=["gpu", "eks"],
):
    # Before the block's tasks: two nodes of one zone and the device plugin. After them, whatever happened: zero.
    with gpu_nodes(two_gpus, nodes=2):
        train = GpuPodOperator(
            task_id="train",
            nodes=2,
            gpus=1,
            image="{{ var.value.get('train_trees_image', 'train-trees:1') }}",
            cmds=["python", "/app/train.py"],
            env_vars={
                "TRAIN_ROUNDS": "{{ params.rounds }}",
                "TRAIN_SECONDS_PER_ROUND": "{{ params.seconds_per_round }}",
                "TRAIN_FAIL_AT_ROUND": "{{ params.fail_at_round }}",
            },
            volumes=[
                k8s.V1Volume(
                    name="checkpoints",
                    persistent_volume_claim=k8s.V1PersistentVolumeClaimVolumeSource(claim_name="checkpoints"),
                )
            ],
            volume_mounts=[k8s.V1VolumeMount(name="checkpoints", mount_path="/checkpoints")],
            checkpoint="/checkpoints",
            # The accuracy comes back as XCom, from rank 0.
            do_xcom_push=True,
        )
