"""GpuPodOperator(nodes=N) in a DAG file: what it refuses."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_gpu_provider.decorators.gpu import gpu_task
from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.operators.gpu_pod import GpuPodOperator
from airflow_gpu_provider.tasks.pool_operator import seconds_of
from tests.unit.clouds.google.test_gke_pool import FLEX_START
from tests.unit.clouds.google.test_gke_pool import pool as gke_pool
from tests.unit.training.test_pod_placement import a_pool


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
        ({"nodes": 2, "log_ranks": "all"}, "log_ranks='all'"),
        ({"nodes": 2, "log_ranks": True}, "log_ranks=True"),
        ({"nodes": 2, "log_ranks": [0, "1"]}, "Give a rank, or a list of ranks"),
        ({"nodes": 2, "log_ranks": (1, 2)}, r"log_ranks has \[2\]"),
        ({"nodes": 1, "log_ranks": 0}, "for several nodes"),
        ({"nodes": 1, "hang_timeout": 60, "get_logs": False}, "needs the pods' logs"),
        ({"nodes": 2, "hang_timeout": "60"}, "Task (train|sweep)( of DAG nightly)?: hang_timeout='60'"),
        ({"hang_timeout": "1h"}, "Task (train|sweep)( of DAG nightly)?: hang_timeout='1h'"),
        ({"nodes": 2, "hang_timeout": float("nan")}, "hang_timeout=nan"),
        ({"nodes": 2, "hang_timeout": 60, "get_logs": False}, "needs the pods' logs"),
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


def test_default_args_of_gangs_are_nothing_to_the_tasks_on_one_node() -> None:
    pool = replace(a_pool(), max_nodes=2)
    with DAG("nightly", schedule=None, default_args={"hang_timeout": 60, "log_ranks": 0}):
        alone = GpuPodOperator(task_id="alone", gpu_pool=pool)
        gang = GpuPodOperator(task_id="gang", gpu_pool=pool, nodes=2)
        swept: Any = GpuPodOperator.partial(task_id="sweep", gpu_pool=pool).expand(cmds=[["a"], ["b"]])
    assert (alone.hang_timeout, alone.log_ranks) == (None, None)
    assert (gang.hang_timeout, gang.log_ranks) == (60, 0)
    assert swept.unmap({"cmds": ["a"]}).hang_timeout is None


def test_no_hang_timeout_is_none_or_zero() -> None:
    assert [seconds_of("hang_timeout", given) for given in (None, 0, timedelta(), 60, timedelta(minutes=1))] == [
        None,
        None,
        None,
        60,
        60,
    ]


DURATION = "provreq.kueue.x-k8s.io/maxRunDurationSeconds"
QUEUED = gke_pool(**FLEX_START, queued_provisioning=True, machine_types=["a3-highgpu-8g"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            {"gpus": 8, "nodes": 2},
            "Task train of DAG d: The task has no queue_name, and the nodes of pool train-gpu come only by .*Give",
        ),
        ({"gpus": 8}, "Task train of DAG d: The task has no queue_name"),
        (
            {"gpus": 4, "nodes": 2, "queue_name": "team-a"},
            "Task train of DAG d: gpus=4, but nodes of pool .* Give gpus=8",
        ),
        (
            {"gpus": 8, "nodes": 2, "queue_name": "team-a", "annotations": {DURATION: "100"}},
            "Task train of DAG d: The task has the annotation .* Kueue deletes the request and makes it again",
        ),
        (
            {"gpus": 8, "labels": {"kueue.x-k8s.io/queue-name": "Bad Q"}},
            "label kueue.x-k8s.io/queue-name='Bad Q' is no name of a LocalQueue. Give",
        ),
    ],
)
def test_nodes_that_come_by_requests_are_for_queues_and_for_whole_gangs(arguments: dict[str, Any], said: str) -> None:
    with DAG("d"), pytest.raises(PoolSpecError, match=said):
        GpuPodOperator(task_id="train", gpu_pool=QUEUED, image="i", **arguments)


def test_what_waits_in_a_queue_may_have_them() -> None:
    labels = {"kueue.x-k8s.io/queue-name": "team-a"}
    with DAG("d"):
        GpuPodOperator(task_id="gang", gpu_pool=QUEUED, image="i", gpus=8, nodes=2, queue_name="team.a")
        GpuPodOperator(task_id="pod", gpu_pool=QUEUED, image="i", gpus=1, queue_name="{{ params.queue }}")
        GpuPodOperator(task_id="labelled", gpu_pool=QUEUED, image="i", gpus=1, labels=labels)
