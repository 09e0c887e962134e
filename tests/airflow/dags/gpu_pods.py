"""GpuPodOperator under a real scheduler: pods whose tasks are killed, one that talks, and a sweep over several pods."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from typing import Any

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, task

from airflow_gpu_provider import EksGpuPool, GpuPodOperator, gpu_nodes
from airflow_gpu_provider.operators.device_plugin import InstallDevicePluginOperator
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.sensors.scale_down import ScaleDownSensor


def pool(name: str, **fields: Any) -> EksGpuPool:
    defaults: dict[str, Any] = {
        "cluster_name": os.environ.get("GPU_SANDBOX_CLUSTER", "k8s-ml"),
        "region": os.environ.get("GPU_SANDBOX_REGION", "us-west-2"),
        "instance_types": ["g6.xlarge"],
        "zones": ["us-west-2a"],
        "max_nodes": 1,
        "max_runtime": timedelta(hours=1),
    }
    return EksGpuPool(name=name, **{**defaults, **fields})


def killed(dag_id: str, *, deferrable: bool) -> DAG:
    """A training that is killed, with time between that and scale-down: the pod has to go without its help."""
    with DAG(dag_id, schedule=None, start_date=datetime(2026, 1, 1)) as dag:
        gpus = pool(dag_id.replace("_", "-"))
        ensure = EnsureGpuPoolOperator(task_id="ensure", gpu_pool=gpus)
        plugin = InstallDevicePluginOperator(task_id="device_plugin", gpu_pool=gpus)
        train = GpuPodOperator(
            task_id="train",
            gpu_pool=gpus,
            image="busybox:1.36",
            cmds=["sh", "-c", "echo started; exec sleep 600"],
            deferrable=deferrable,
        )
        pause = BashOperator(task_id="pause", bash_command="sleep 20", trigger_rule="all_done")
        scale_down = ScaleDownSensor(task_id="scale_down", gpu_pool=gpus, trigger_rule="all_done")
        ensure >> plugin >> train >> pause >> scale_down
    return dag


pod_killed = killed("pod_killed", deferrable=True)
pod_killed_blocking = killed("pod_killed_blocking", deferrable=False)

with (
    DAG("pod_resumed", schedule=None, start_date=datetime(2026, 1, 1)) as resumed,
    gpu_nodes(pool("pod-resumed", capacity_types=["SPOT"]), gpus=1),
):
    GpuPodOperator(
        task_id="train",
        image="busybox:1.36",
        cmds=["sh", "-c"],
        arguments=[
            """
            echo "attempt $AIRFLOW_GPU_ATTEMPT"
            if [ "$AIRFLOW_GPU_ATTEMPT" = 1 ]; then exec sleep 600; fi
            echo "[$AIRFLOW_GPU_ATTEMPT, \\"$AIRFLOW_GPU_CHECKPOINT\\"]" > /airflow/xcom/return.json
            """
        ],
        do_xcom_push=True,
        checkpoint="s3://checkpoints/resumed",
        retries=0,
    )

with (
    DAG("pod_logs", schedule=None, start_date=datetime(2026, 1, 1)),
    gpu_nodes(pool("pod-logs")),
):
    GpuPodOperator(
        task_id="train",
        image="busybox:1.36",
        cmds=["sh", "-c", "i=0; while [ $i -lt 900 ]; do echo line $i; i=$((i+1)); sleep 0.1; done"],
    )

with (
    DAG("pod_sweep", schedule=None, start_date=datetime(2026, 1, 1)) as sweep,
    gpu_nodes(pool("pod-sweep", instance_types=["g6.12xlarge"]), gpus=4),
):
    GpuPodOperator.partial(task_id="train", image="busybox:1.36", cmds=["sh", "-c"], do_xcom_push=True).expand(
        arguments=[[f'echo {{\\"rate\\": {rate}}} > /airflow/xcom/return.json'] for rate in (1, 2, 3)]
    )

with (
    DAG("gpu_function", schedule=None, start_date=datetime(2026, 1, 1)),
    gpu_nodes(pool("gpu-function", instance_types=["g6.12xlarge"]), gpus=4),
):

    @task.gpu(gpus=2, image="python:3.12", do_xcom_push=True)
    def visible_gpus(add: list[int], *, label: str) -> dict[str, Any]:
        """Say what the function was given, and which GPUs its pod sees."""
        import os

        return {label: sum(add), "gpus": len(os.environ["CUDA_VISIBLE_DEVICES"].split(","))}

    visible_gpus.override(task_id="mapped").partial(label="sum").expand(add=[[1, 2], [3, 4]])
    visible_gpus([1, 2, 3], label="sum")


def in_block(dag_id: str, command: str, **arguments: Any) -> DAG:
    """A training in a block with a pool of its own."""
    with (
        DAG(dag_id, schedule=None, start_date=datetime(2026, 1, 1)) as dag,
        gpu_nodes(pool(dag_id.replace("_", "-")), gpus=1),
    ):
        GpuPodOperator(task_id="train", image="busybox:1.36", cmds=["sh", "-c", command], **arguments)
    return dag


# Long enough for whatever is killed to be back before the pod ends, and no longer.
outlives = in_block("pod_outlives", "echo started; sleep 40; echo trained")
evicted = in_block("pod_worker_evicted", "echo started; exec sleep 600", deferrable=False, retries=0)
worker_killed = in_block(
    "pod_worker_killed",
    "echo started; test {{ ti.try_number }} -gt 1 || exec sleep 600; echo trained again",
    deferrable=False,
    retries=1,
    retry_delay=timedelta(seconds=1),
)
dag_deleted = in_block("pod_dag_deleted", "echo started; sleep {{ dag_run.conf.get('seconds', 600) }}")
