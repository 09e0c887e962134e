"""A night whose workers run a later release than the triggerer, which does not know the records that they write."""

from __future__ import annotations

import os
from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_gpu_provider import EksGpuPool, GpuPodOperator, gpu_nodes
from airflow_gpu_provider.operators import training
from airflow_gpu_provider.triggers import device_plugin_ready
from airflow_gpu_provider.triggers import pool as pools
from tests.airflow.retries import AGAIN

for module in (pools, device_plugin_ready, training):
    assert "RECORD_VERSION" in vars(module)
    vars(module)["RECORD_VERSION"] = 99  # in workers, which read this file, and not in the triggerer

POOL = EksGpuPool(
    name="later-release",
    cluster_name=os.environ.get("GPU_SANDBOX_CLUSTER", "k8s-ml"),
    region=os.environ.get("GPU_SANDBOX_REGION", "us-west-2"),
    instance_types=["g6.xlarge"],
    zones=["us-west-2a"],
    max_nodes=1,
    max_runtime=timedelta(hours=1),
)

with DAG("later_release", schedule=None, start_date=datetime(2026, 1, 1), default_args=AGAIN), gpu_nodes(POOL, gpus=1):
    GpuPodOperator(
        task_id="train",
        image="busybox:1.36",
        cmds=["sh", "-c"],
        arguments=["sleep 15; echo '{\"accuracy\": 1}' > /airflow/xcom/return.json"],
        do_xcom_push=True,
        retries=0,
    )
