"""What makes a block red: its leaves, and work that is cut off because the run was marked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.operators.python import ShortCircuitOperator
from airflow.sdk import DAG

from airflow_gpu_provider.errors import BlockFailed
from airflow_gpu_provider.operators.block_verdict import BlockVerdictOperator, by_task, failed_tasks, summary

UNMAPPED = -1
ZERO = {"gpu.scale_down": {UNMAPPED: "success"}}


def one_each(states: Mapping[str, str]) -> dict[str, dict[int, str]]:
    return {task_id: {UNMAPPED: state} for task_id, state in states.items()}


@pytest.mark.parametrize("was_marked", [False, None])
@pytest.mark.parametrize(
    ("states", "leaves", "failed"),
    [
        ({"train": "success"}, ["train"], []),
        ({"train": "failed"}, ["train"], ["train"]),
        ({"train": "failed", "evaluate": "upstream_failed"}, ["evaluate"], ["train", "evaluate"]),
        # The DAG's own logic: a short circuit, and a fallback that saves the night.
        ({"train": "success", "evaluate": "skipped"}, ["evaluate"], []),
        ({"train": "skipped", "evaluate": "skipped"}, ["evaluate"], []),
        ({"train": "failed", "fallback": "success"}, ["fallback"], []),
    ],
)
def test_leaves_decide(states: dict[str, str], leaves: list[str], failed: list[str], was_marked: bool | None) -> None:
    tasks = {**one_each(states), **ZERO}
    assert failed_tasks(tasks, deciding=[*leaves, "gpu.scale_down"], was_marked=was_marked) == failed


@pytest.mark.parametrize(
    ("states", "failed"),
    [
        # It was queued, scheduled, or waited for its next try.
        ({"gpu.ensure": "success", "train": "skipped"}, ["train"]),
        ({"gpu.ensure": "success", "train": "success", "evaluate": "skipped"}, ["evaluate"]),
        # What ran is failed, what was still to come is skipped.
        ({"gpu.ensure": "success", "train": "failed", "evaluate": "skipped"}, ["train", "evaluate"]),
        ({"gpu.ensure": "failed", "train": "skipped", "evaluate": "skipped"}, ["gpu.ensure", "train", "evaluate"]),
        ({"gpu.ensure": "skipped", "train": "skipped", "evaluate": "skipped"}, ["gpu.ensure", "train", "evaluate"]),
        # All had ended: scale-down ran.
        ({"gpu.ensure": "success", "train": "success", "evaluate": "success"}, []),
        ({"gpu.ensure": "success", "train": "success", "evaluate": "failed"}, ["evaluate"]),
    ],
)
def test_work_that_was_cut_off_because_the_run_was_marked_is_a_failure(
    states: dict[str, str], failed: list[str]
) -> None:
    tasks = {**one_each(states), **ZERO}
    assert failed_tasks(tasks, deciding=["evaluate", "gpu.scale_down"], was_marked=True) == failed


@pytest.mark.parametrize(("was_marked", "failed"), [(False, []), (None, ["train"])])
def test_a_skipped_leaf_beside_a_failure_is_in_doubt_only_where_nobody_can_tell(
    was_marked: bool | None, failed: list[str]
) -> None:
    states = one_each({"train": "failed", "fallback": "success", "other_branch": "skipped"})
    assert failed_tasks(states, deciding=["fallback", "other_branch"], was_marked=was_marked) == failed


def test_a_scale_down_that_failed_makes_the_night_red() -> None:
    tasks = one_each({"train": "success", "gpu.scale_down": "failed"})
    assert failed_tasks(tasks, deciding=["train", "gpu.scale_down"], was_marked=False) == ["gpu.scale_down"]


def test_a_mapped_task_s_instances_are_told_from_tasks_whose_names_look_like_theirs() -> None:
    tasks = by_task([ended("train", 1, "failed"), ended("train", 0, "success"), ended("train_1", UNMAPPED, "success")])
    assert tasks == {"train": {0: "success", 1: "failed"}, "train_1": {UNMAPPED: "success"}}
    assert failed_tasks(tasks, deciding=["train", "train_1"], was_marked=False) == ["train"]


def test_a_block_in_a_mapped_task_group_looks_at_its_own_index() -> None:
    crumbs = [ended("train", 0, "success"), ended("train", 1, "failed")]
    assert by_task(crumbs, only_index=0) == {"train": {0: "success"}}


def test_mapped_task_is_told_in_one_line() -> None:
    sweep = dict.fromkeys(range(20), "success") | {3: "failed", 17: "failed"}
    assert summary(sweep) == "18 success, 2 failed (map indexes 3, 17)"
    assert summary({UNMAPPED: "success"}) == "success"


def test_summary_of_a_great_sweep_is_short() -> None:
    said = summary(dict.fromkeys(range(1000), "upstream_failed"))
    assert said.startswith("1000 upstream_failed (map indexes 0, 1, 2,")
    assert said.endswith("19, and 980 more)")


class Run:
    """What a task is told of its DAG run: the task instances that have ended, and XComs."""

    dag_id, run_id, map_index = "nightly", "tonight", UNMAPPED

    def __init__(self, states: Mapping[str, str], xcoms: Mapping[str, Any]) -> None:
        self._states, self._xcoms = states, xcoms

    def get_task_breadcrumbs(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        assert (dag_id, run_id) == (self.dag_id, self.run_id)
        return [ended(task_id, UNMAPPED, state) for task_id, state in self._states.items()]

    def xcom_pull(self, *, task_ids: Any, key: str, map_indexes: int) -> Any:
        assert map_indexes == UNMAPPED
        if key == "uncollected":
            return self._xcoms.get(task_ids)
        assert key == "skipmixin_key"
        return [self._xcoms.get(task_id) for task_id in task_ids]


def ended(task_id: str, map_index: int, state: str) -> dict[str, Any]:
    return {"task_id": task_id, "map_index": map_index, "state": state, "operator": "EmptyOperator", "duration": 0.0}


def judge(states: Mapping[str, str], xcoms: Mapping[str, Any], *, retries: int = 0) -> None:
    with DAG("nightly", schedule=None):
        decide = ShortCircuitOperator(task_id="decide", python_callable=bool)
        done = BlockVerdictOperator(
            task_id="done",
            block_tasks=["decide", "train", "scale_down"],
            deciding_tasks=["train", "scale_down"],
            scale_down="scale_down",
            witness="witness",
        )
        decide >> EmptyOperator(task_id="train", retries=retries) >> EmptyOperator(task_id="witness") >> done
    done.execute({"ti": Run(states, xcoms)})  # type: ignore[typeddict-item]


def test_a_short_circuit_says_whom_it_has_skipped() -> None:
    states = {"decide": "success", "train": "skipped", "witness": "skipped"}
    judge(states, {"decide": {"skipped": ["train", "witness", "done"]}})
    with pytest.raises(BlockFailed, match="marked before its tasks had ended: train: skipped"):
        judge(states, {})


@pytest.mark.parametrize("retries", [0, 2])
def test_a_training_that_had_succeeded_and_was_not_collected_is_red_and_told_so(retries: int) -> None:
    states = {"train": "failed", "scale_down": "success", "witness": "success"}
    with pytest.raises(BlockFailed) as failed:
        judge(states, {"scale_down": ["ml/train-x"]}, retries=retries)
    assert failed.value.what == (
        "Tasks failed: train: failed. The training of pod ml/train-x had succeeded, and nobody had collected its log"
        " and result: its task was marked, or its worker ended."
    )
    assert ("Give the task `retries`" in failed.value.fix) == (not retries)
    assert failed.value.fix.endswith("Cleared, it trains again.")


@pytest.mark.parametrize(("train", "is_in_doubt"), [("failed", False), ("skipped", True)])
def test_only_a_run_that_may_have_been_marked_a_success_is_to_be_marked_so_again(train: str, is_in_doubt: bool) -> None:
    with pytest.raises(BlockFailed) as failed:
        judge({"decide": "skipped", "train": train, "witness": "skipped"}, {})
    assert ("mark it so again" in str(failed.value)) == is_in_doubt


@pytest.mark.parametrize(("train", "more"), [("success", ""), ("failed", "; also failed: train: failed")])
def test_a_scale_down_that_failed_is_told_first_and_once(train: str, more: str) -> None:
    states = {"decide": "success", "train": train, "scale_down": "failed", "witness": "success"}
    with pytest.raises(BlockFailed) as failed:
        judge(states, {})
    assert failed.value.what == f"Machines may still run, for scale-down failed{more}."
    assert failed.value.fix.startswith("The log of scale_down names them")


def test_a_task_that_skips_itself_leaves_the_witness_alone() -> None:
    judge({"decide": "success", "train": "skipped", "witness": "success"}, {})
