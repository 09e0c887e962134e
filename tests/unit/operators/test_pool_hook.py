"""PoolHook: what the pool's own connection says of pods."""

from __future__ import annotations

import json

import pytest

from airflow_gpu_provider import EksGpuPool, KubernetesGpuPool
from airflow_gpu_provider.operators.pool_hook import PoolHook
from airflow_gpu_provider.pools import GpuPool

LAB = KubernetesGpuPool(name="lab", nodes=["gpu-1"], gpus_per_node=1, kubernetes_conn_id="lab")
TRAIN = EksGpuPool(name="train", cluster_name="ml", region="us-west-2", instance_types=["g6.xlarge"], max_nodes=1)
RESOURCES = {"requests": {"cpu": "10m"}}
SECURITY = {"runAsNonRoot": True}


def sidecar(pool: GpuPool) -> tuple[object, object, object]:
    hook = PoolHook(pool)
    return (
        hook.get_xcom_sidecar_container_image(),
        hook.get_xcom_sidecar_container_resources(),
        hook.get_xcom_sidecar_container_security_context(),
    )


def test_the_xcom_sidecar_is_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {
        "xcom_sidecar_container_image": "registry.example.com/alpine:3",
        "xcom_sidecar_container_resources": json.dumps(RESOURCES),
        "xcom_sidecar_container_security_context": json.dumps(SECURITY),
    }
    monkeypatch.setenv("AIRFLOW_CONN_LAB", json.dumps({"conn_type": "kubernetes", "extra": extra}))
    assert sidecar(LAB) == ("registry.example.com/alpine:3", RESOURCES, SECURITY)


def test_where_the_connection_says_nothing_it_is_airflows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_LAB", json.dumps({"conn_type": "kubernetes"}))
    assert sidecar(LAB) == sidecar(TRAIN) == (None, None, None)
