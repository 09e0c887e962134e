"""GpuPodOperator(nodes=N) in a DAG file: what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_gpu_provider.decorators.gpu import gpu_task
from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.operators.gpu_pod import GpuPodOperator
from tests.unit.pods.test_pod_placement import a_pool


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"nodes": 0}, "nodes=0"),
        ({"nodes": True}, "nodes=True"),
        ({"nodes": "{{ params.nodes }}"}, "nodes="),
        ({"nodes": 3}, "max_nodes=2"),
        ({"queue_name": "Team A"}, "queue_name='Team A'"),
        ({"queue_name": ""}, "queue_name=''"),
        ({"queue_name": "a", "labels": {"kueue.x-k8s.io/queue-name": "b"}}, "is 'b'"),
        ({"nodes": 2, "hostname": "a"}, "hostname"),
        ({"nodes": 2, "subdomain": "a"}, "subdomain"),
        ({"nodes": 2, "progress_callback": print}, "progress_callback"),
    ],
)
def test_refused_when_the_dag_is_parsed(arguments: dict[str, Any], said: str) -> None:
    pool = replace(a_pool(), max_nodes=2)
    with pytest.raises(PoolSpecError, match=said):
        GpuPodOperator(task_id="train", gpu_pool=pool, **arguments)
    with DAG("nightly", schedule=None), pytest.raises(PoolSpecError, match=said):
        GpuPodOperator.partial(task_id="sweep", gpu_pool=pool, **arguments)


def test_one_node_is_the_default_and_the_decorator_takes_more() -> None:
    pool = replace(a_pool(), max_nodes=2)
    assert GpuPodOperator(task_id="train", gpu_pool=pool, hostname="a").nodes == 1

    with DAG("nightly", schedule=None, default_args={"nodes": 2}):
        assert GpuPodOperator(task_id="train", gpu_pool=pool).nodes == 1  # they are EnsureGpuPoolOperator's

        @gpu_task(gpu_pool=pool, nodes=2, image="train:1")
        def train() -> None: ...

        assert train().operator.nodes == 2
