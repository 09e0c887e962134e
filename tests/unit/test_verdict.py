"""What makes a block red: its leaves, and skips that only a person can have caused."""

from __future__ import annotations

import pytest

from airflow_gpu_provider.operators.verdict import by_task, failed_tasks, summary

TASK_IDS = ["train", "evaluate", "fallback", "sweep", "stage_2", "gpu.ensure", "gpu.scale_down"]
ZERO = {"gpu.scale_down": "success"}


@pytest.mark.parametrize(
    ("states", "leaves", "failed"),
    [
        ({"train": "success"}, ["train"], []),
        ({"train": "failed"}, ["train"], ["train"]),
        ({"train": "failed", "evaluate": "upstream_failed"}, ["evaluate"], ["evaluate", "train"]),
        # A run that a person marked failed: what ran is failed, what was still to come is skipped.
        ({"train": "failed", "evaluate": "skipped"}, ["evaluate"], ["train"]),
        # The same while Ensure waited.
        ({"gpu.ensure": "failed", "train": "skipped"}, ["train"], ["gpu.ensure"]),
        # The DAG's own logic: a short circuit, and a fallback that saves the night.
        ({"train": "success", "evaluate": "skipped"}, ["evaluate"], []),
        ({"train": "failed", "fallback": "success"}, ["fallback"], []),
        ({"sweep_0": "success", "sweep_1": "failed"}, ["sweep"], ["sweep"]),
        ({"sweep_10": "success"}, ["sweep"], []),
        ({"stage_2": "failed"}, ["stage_2"], ["stage_2"]),
    ],
)
def test_leaves_decide(states: dict[str, str], leaves: list[str], failed: list[str]) -> None:
    tasks = by_task({**states, **ZERO}, TASK_IDS)
    assert failed_tasks(tasks, deciding=[*leaves, "gpu.scale_down"]) == failed


def test_a_scale_down_that_failed_makes_the_night_red() -> None:
    states = {"train": "success", "gpu.scale_down": "failed"}
    tasks = by_task(states, TASK_IDS)
    assert failed_tasks(tasks, deciding=["train", "gpu.scale_down"]) == ["gpu.scale_down"]


def test_mapped_task_is_told_in_one_line() -> None:
    states = {f"sweep_{index}": "success" for index in range(20)} | {"sweep_3": "failed", "sweep_17": "failed"}
    tasks = by_task({**states, "train": "success"}, TASK_IDS)
    assert {task_id: summary(states) for task_id, states in tasks.items()} == {
        "sweep": "18 success, 2 failed (map indexes 3, 17)",
        "train": "success",
    }


def test_summary_of_a_great_sweep_is_short() -> None:
    said = summary(dict.fromkeys(range(1000), "upstream_failed"))
    assert said.startswith("1000 upstream_failed (map indexes 0, 1, 2,")
    assert said.endswith("19, and 980 more)")
