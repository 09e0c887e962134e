"""What Airflow's components import once, for the tasks and DAG files of tests to find imported already."""

from __future__ import annotations

INHERITED = (
    "airflow.providers.amazon.aws.hooks.base_aws",
    "airflow.providers.cncf.kubernetes.operators.pod",
    "airflow_gpu_provider.block",
    "airflow_gpu_provider.operators.gpu_pod",
    "airflow_gpu_provider.clouds.aws.platform",
)
