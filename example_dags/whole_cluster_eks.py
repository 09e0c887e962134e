"""A whole EKS cluster for one night: created, used for a training on spot GPUs, and deleted.

The cluster comes and goes by the Amazon provider's own operators; the block stands between them. Two things make the
run's colour right, and nothing is left behind:

- `delete_cluster` is the teardown of `create_cluster`: it runs whatever becomes of the tasks in between. With
  `on_failure_fail_dagrun=True` a deletion that fails makes the run red.
- It comes after the block's scale-down, *beside* the block's last task, `done`: a run's state comes from its leaves.
  If `delete_cluster` came after `done`, it alone would decide, and a failed training would be a green night.

To run it in an account of yours:

1. Set what differs, as Airflow Variables (or as environment, `AIRFLOW_VAR_GPU_REGION=...`):

       gpu_region         the region                                        default: us-west-2
       gpu_subnets        three subnets, in different zones, as JSON        like ["subnet-1", "subnet-2", "subnet-3"]
       gpu_cluster_role   ARN of the cluster's role                         (AmazonEKSClusterPolicy)
       gpu_node_role      ARN of the nodes' role                            (AmazonEKSWorkerNodePolicy and so on)
       smoke_image        what the pod runs                                 default: nvidia/cuda:12.8.1-base-ubuntu24.04

2. Have a connection `aws_default` that may create and delete clusters, besides what docs/iam.md lists.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.providers.amazon.aws.operators.eks import EksCreateClusterOperator, EksDeleteClusterOperator
from airflow.sdk import DAG

from airflow_gpu_provider import EksGpuPool, GpuPodOperator, gpu_nodes

CLUSTER = "gpu-night"
REGION = "{{ var.value.get('gpu_region', 'us-west-2') }}"
NODE_ROLE = "{{ var.value.gpu_node_role }}"
# Of each of the provider's waits, in seconds; its own half a minute would add minutes to the night.
OFTEN = {"waiter_delay": 10, "waiter_max_attempts": 180}

night_gpu = EksGpuPool(
    name="night-gpu",
    cluster_name=CLUSTER,
    region=REGION,
    node_role=NODE_ROLE,
    instance_types=["g6.xlarge", "g5.xlarge"],
    capacity_types=["SPOT", "ON_DEMAND"],
    max_nodes=2,
    max_runtime=timedelta(hours=2),
)

with DAG(
    "whole_cluster_eks",
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    doc_md=__doc__,
    tags=["gpu", "eks"],
) as dag:
    create_cluster = EksCreateClusterOperator(
        task_id="create_cluster",
        cluster_name=CLUSTER,
        region_name=REGION,
        cluster_role_arn="{{ var.value.gpu_cluster_role }}",
        resources_vpc_config={"subnetIds": [f"{{{{ var.json.gpu_subnets[{number}] }}}}" for number in range(3)]},
        # The cluster's own pods need a machine that stays, as long as the cluster does.
        compute="nodegroup",
        nodegroup_name="general",
        nodegroup_role_arn=NODE_ROLE,
        create_nodegroup_kwargs={
            "scalingConfig": {"minSize": 1, "maxSize": 1, "desiredSize": 1},
            "instanceTypes": ["m5.large"],
        },
        wait_for_completion=True,
        **OFTEN,
    ).as_setup()

    with gpu_nodes(night_gpu, gpus=1) as block:
        GpuPodOperator(
            task_id="nvidia_smi",
            gpus=1,
            image="{{ var.value.get('smoke_image', 'nvidia/cuda:12.8.1-base-ubuntu24.04') }}",
            cmds=["nvidia-smi"],
        )

    delete_cluster = EksDeleteClusterOperator(
        task_id="delete_cluster",
        cluster_name=CLUSTER,
        region_name=REGION,
        # Node groups first, the block's empty ones too: EKS deletes no cluster that has any.
        force_delete_compute=True,
        wait_for_completion=True,
        **OFTEN,
    )

    create_cluster >> block
    scale_down = dag.get_task("night-gpu.scale_down")
    scale_down >> delete_cluster.as_teardown(setups=create_cluster, on_failure_fail_dagrun=True)
