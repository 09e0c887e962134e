"""What makes a block red: its leaves, and skips that only a person can have caused."""

from __future__ import annotations

import pytest

from airflow_gpu_provider.operators.verdict import failed_tasks

ZERO = {"gpu.scale_down": "success"}


@pytest.mark.parametrize(
    ("states", "leaves", "failed"),
    [
        ({"train": "success"}, ["train"], []),
        ({"train": "failed"}, ["train"], ["train"]),
        ({"train": "failed", "evaluate": "upstream_failed"}, ["evaluate"], ["evaluate", "train"]),
        # A run that a person marked failed: what ran is failed, what was still to come is skipped.
        ({"train": "failed", "evaluate": "skipped"}, ["evaluate"], ["train"]),
        # The DAG's own logic: a short circuit, and a fallback that saves the night.
        ({"train": "success", "evaluate": "skipped"}, ["evaluate"], []),
        ({"train": "failed", "fallback": "success"}, ["fallback"], []),
        ({"sweep_0": "success", "sweep_1": "failed"}, ["sweep"], ["sweep_1"]),
        ({"sweep_10": "success"}, ["sweep"], []),
        ({"stage_2": "failed"}, ["stage_2"], ["stage_2"]),
    ],
)
def test_leaves_decide(states: dict[str, str], leaves: list[str], failed: list[str]) -> None:
    assert failed_tasks({**states, **ZERO}, deciding=[*leaves, "gpu.scale_down"]) == failed


def test_a_scale_down_that_failed_makes_the_night_red() -> None:
    states = {"train": "success", "gpu.scale_down": "failed"}
    assert failed_tasks(states, deciding=["train", "gpu.scale_down"]) == ["gpu.scale_down"]
