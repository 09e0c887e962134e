"""Mapped tasks in a block, and blocks in mapped task groups."""

from __future__ import annotations

from datetime import timedelta

import pytest
from airflow.sdk import DAG, task, task_group

from airflow_gpu_provider import GpuPodOperator
from tests.dry_nights.dags import block, dag
from tests.dry_nights.installation import Airflow, Work


def sweep(size: int, **arguments: object) -> DAG:
    with dag() as nightly, block():
        Work.partial(task_id="train", retries=0, **arguments).expand(rate=["0.1"] * size)
    return nightly


def test_a_sweep_of_which_some_fail(airflow: Airflow) -> None:
    night = airflow.begin(sweep(20), train={3: "failed", 7: "failed"}).go_on()
    assert (night.state, night["train[2]"], night["train[3]"]) == ("failed", "success", "failed")
    assert night["gpus.scale_down"] == "success"
    why = str(night.errors["gpus.done"])
    assert why.startswith("Tasks failed: train: 18 success, 2 failed (map indexes 3, 7).")


def test_scale_down_waits_for_the_last_of_a_sweep(airflow: Airflow) -> None:
    night = airflow.begin(sweep(3), train={1: "running"}).go_on()
    assert (night["train[0]"], night["train[2]"], night["gpus.scale_down"]) == ("success", "success", None)
    night.end("train", map_index=1).go_on()
    assert (night.state, night["gpus.scale_down"]) == ("success", "success")


def test_a_sweep_over_what_a_task_in_the_block_returns(airflow: Airflow) -> None:
    with dag() as nightly, block():

        @task
        def rates() -> list[str]:
            return ["0.1", "0.3"]

        GpuPodOperator.partial(task_id="train", image="busybox", retries=0).expand(name=rates())
    night = airflow.begin(nightly, train={1: "failed"}).go_on()
    assert (night["rates"], night["train[0]"], night["train[1]"]) == ("success", "success", "failed")
    assert (night.state, night["gpus.scale_down"]) == ("failed", "success")
    assert "train: 1 success, 1 failed (map index 1)" in str(night.errors["gpus.done"])


def test_a_sweep_over_nothing(airflow: Airflow) -> None:
    with dag() as nightly, block():

        @task
        def rates() -> list[str]:
            return []

        Work.partial(task_id="train").expand(rate=rates())
    night = airflow.begin(nightly).go_on()
    assert (night.state, night["train"], night["gpus.scale_down"]) == ("success", "skipped", "success")


def test_a_sweep_s_failed_index_is_cleared_alone(airflow: Airflow) -> None:
    night = airflow.begin(sweep(3), train={1: "failed"}).go_on()
    night.ends.clear()
    night.clear(("train", 1), downstream=False, only_failed=True).go_on()
    assert (night.state, night["gpus.done"]) == ("success", "success")
    tries = {name: night.tries(name) for name in ("gpus.ensure", "gpus.scale_down", "gpus.done")}
    assert tries == {"gpus.ensure": 1, "gpus.scale_down": 1, "gpus.done": 2}
    assert [night.tries("train", index) for index in range(3)] == [1, 2, 1]


def cities(**arguments: object) -> DAG:
    with dag() as nightly:

        @task_group
        def city(name: str) -> None:
            with block():
                Work(task_id="train", rate=name, **{"retries": 0, **arguments})

        city.expand(name=["oslo", "rome"])
    return nightly


def test_each_index_of_a_mapped_task_group_is_a_block(airflow: Airflow) -> None:
    night = airflow.begin(cities(), train={1: "failed"}).go_on()
    assert night.state == "failed"
    found = {name: (night[f"city.{name}[0]"], night[f"city.{name}[1]"]) for name in ("train", "gpus.scale_down")}
    assert found == {"train": ("success", "failed"), "gpus.scale_down": ("success", "success")}
    assert (night["city.gpus.done[0]"], night["city.gpus.done[1]"]) == ("success", "failed")
    assert night.errors["city.gpus.done[0]"] is None
    assert "city.train: 1 failed (map index 1)" in str(night.errors["city.gpus.done[1]"])


def test_an_index_s_scale_down_does_not_wait_for_the_other_one(airflow: Airflow) -> None:
    night = airflow.begin(cities(), train={1: "running"}).go_on()
    assert (night["city.gpus.done[0]"], night["city.gpus.scale_down[1]"]) == ("success", None)
    night.end("city.train", map_index=1).go_on()
    assert (night.state, night["city.gpus.done[1]"]) == ("success", "success")


@pytest.mark.parametrize("waits", ["failed", "success"])
def test_a_run_with_a_mapped_task_group_is_marked_while_one_index_waits_for_its_retry(
    airflow: Airflow, waits: str
) -> None:
    night = airflow.begin(cities(retries=1, retry_delay=timedelta(hours=1)), train={1: "failed"}).go_on()
    assert night["city.train[1]"] == "up_for_retry"
    night.mark(waits).go_on()
    assert (night["city.gpus.done[0]"], night["city.gpus.done[1]"]) == ("success", "failed")
    assert (night.state, night["city.gpus.scale_down[1]"]) == ("failed", "success")
