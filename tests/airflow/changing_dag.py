"""A DAG whose file changes while its run goes on: test_changing_dags.py writes it anew with other values.

Its training is held by the test, which listens on the port that the run's configuration names.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

from airflow_gpu_provider import EksGpuPool, GpuPodOperator, gpu_nodes
from tests.airflow.retries import AGAIN

DAG_ID = "@dag_id@"
POOL = "@pool@"
INSTANCE_TYPE = "@instance_type@"
HAS_BLOCK = bool("@has_block@")

TRAINING = """
exec 3<>/dev/tcp/127.0.0.1/{{ dag_run.conf['port'] }} || exit 3
echo "{{ run_id }}" >&3
read -r word <&3
test "$word" = end || exit 4
echo trained
"""

POOL_SPEC = EksGpuPool(
    name=POOL,
    cluster_name=os.environ.get("GPU_SANDBOX_CLUSTER", "k8s-ml"),
    region=os.environ.get("GPU_SANDBOX_REGION", "us-west-2"),
    instance_types=[INSTANCE_TYPE],
    zones=["us-west-2a"],
    max_nodes=1,
    max_runtime=timedelta(hours=1),
)

with DAG(DAG_ID, schedule=None, start_date=datetime(2026, 1, 1), default_args=AGAIN):
    first = EmptyOperator(task_id="first")
    if HAS_BLOCK:
        with gpu_nodes(POOL_SPEC) as block:
            GpuPodOperator(
                task_id="train",
                image="busybox:1.36",
                cmds=["bash", "-c", TRAINING],
                termination_grace_period=1,
            )
        first >> block
