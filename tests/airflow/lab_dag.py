"""A machine that is there already, through a connection that holds a kubeconfig: test_credentials.py's."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from airflow_gpu_provider import GpuPodOperator, KubernetesGpuPool, gpu_nodes

LAB = KubernetesGpuPool(
    name="lab", nodes=["metal-1"], gpus_per_node=1, kubernetes_conn_id="lab", max_runtime=timedelta(hours=1)
)

with DAG("lab", schedule=None), gpu_nodes(LAB, gpus=1):
    command = ["sh", "-c", "sleep 3; echo '{\"trained\": true}' > /airflow/xcom/return.json"]
    GpuPodOperator(task_id="train", gpus=1, image="busybox:1.36", cmds=command, do_xcom_push=True)
