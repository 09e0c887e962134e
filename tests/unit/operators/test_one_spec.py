"""One spec for each pool name of a DAG: what is refused when the DAG is parsed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_gpu_provider import EksGpuPool, EnsureGpuPoolOperator, GkeGpuPool, GpuPodOperator, gpu_nodes
from airflow_gpu_provider.errors import PoolSpecError

SEVEN = EksGpuPool(name="seven", cluster_name="ml", region="us-west-2", instance_types=["g6.xlarge"], max_nodes=2)
G5 = replace(SEVEN, instance_types=["g5.xlarge"])


def block(pool: Any, name: str) -> None:
    with gpu_nodes(pool, group_id=name):
        GpuPodOperator(task_id=f"train_{name}", image="busybox")


def by_hand(pool: Any, name: str) -> None:
    EnsureGpuPoolOperator(task_id=f"{name}.ensure", gpu_pool=pool)


def mapped(pool: Any, name: str) -> None:
    EnsureGpuPoolOperator.partial(task_id=f"{name}.ensure", gpu_pool=pool).expand(nodes=[1, 2])


WAYS = pytest.mark.parametrize("second", [block, by_hand, mapped])


@WAYS
@pytest.mark.parametrize("first", [block, by_hand, mapped])
@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (G5, "machine types g6.xlarge instead of g5.xlarge"),
        (replace(SEVEN, capacity_types=["SPOT"]), "capacity types ON_DEMAND instead of SPOT"),
        (replace(SEVEN, zones=["us-west-2b"], tags={"run": "{{ run_id }}"}), "zones any instead of us-west-2b"),
    ],
)
def test_two_specs_of_one_name_are_refused(
    first: Callable[..., None], second: Callable[..., None], other: Any, difference: str
) -> None:
    with DAG("d"):
        first(SEVEN, "one")
        with pytest.raises(PoolSpecError) as refused:
            second(other, "two")
    said = f"Task two.ensure of DAG d: Task one.ensure has another spec of pool seven: {difference}."
    assert refused.value.what == said


@WAYS
@pytest.mark.parametrize(
    "other",
    [
        SEVEN,
        replace(SEVEN, price_per_hour=2.0, max_nodes=1),
        replace(G5, name="eight"),
        replace(G5, cluster_name="another"),
        replace(G5, name="{{ params.name }}"),
        replace(SEVEN, instance_types="{{ params.types }}"),
        replace(SEVEN, node_labels={"team": "{{ params.team }}"}),
        GkeGpuPool(
            name="seven",
            project_id="ml-project",
            location="us-central1",
            cluster_name="ml",
            machine_types=["g2-standard-4"],
            max_nodes=1,
        ),
    ],
)
def test_what_is_one_spec_or_two_pools_or_not_known_is_taken(second: Callable[..., None], other: Any) -> None:
    with DAG("d"):
        block(SEVEN, "one")
        second(other, "two")


def test_other_dags_and_none_are_not_asked() -> None:
    by_hand(SEVEN, "alone")
    for name, pool in (("a", SEVEN), ("b", G5)):
        with DAG(name):
            block(pool, "one")
