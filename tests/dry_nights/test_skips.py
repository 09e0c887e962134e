"""Tasks that the DAG's own logic skips: the night is green, unless its work has failed as well."""

from __future__ import annotations

import pytest
from airflow.providers.standard.operators.python import BranchPythonOperator, ShortCircuitOperator
from airflow.sdk import DAG

from airflow_gpu_provider import EnsureGpuPoolOperator, ScaleDownSensor
from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.operators.scale_down_after import check_is_released
from tests.dry_nights.dags import block, dag, pool
from tests.dry_nights.installation import Airflow, Work


def stop(task_id: str = "decide", **arguments: object) -> ShortCircuitOperator:
    return ShortCircuitOperator(task_id=task_id, python_callable=lambda: False, **arguments)


@pytest.mark.parametrize(
    ("ends", "states"),
    [
        ({"evaluate": "skipped"}, {"train": "success", "evaluate": "skipped"}),
        ({"train": "skipped"}, {"train": "skipped", "evaluate": "skipped"}),
    ],
    ids=["last", "all"],
)
def test_a_task_skips_itself(airflow: Airflow, ends: dict[str, str], states: dict[str, str]) -> None:
    with dag() as nightly, block():
        Work(task_id="train") >> Work(task_id="evaluate")
    night = airflow.begin(nightly, **ends).go_on()
    well = dict.fromkeys(("gpus.begin", "gpus.ensure", "gpus.scale_down", "gpus.witness", "gpus.done"), "success")
    assert (night.state, night.states) == ("success", well | states)


def test_a_task_is_skipped_and_another_one_fails(airflow: Airflow) -> None:
    with dag() as nightly, block():
        Work(task_id="train")
        Work(task_id="evaluate")
    night = airflow.begin(nightly, train="failed", evaluate="skipped").go_on()
    assert (night.state, night["gpus.done"]) == ("failed", "failed")
    assert str(night.errors["gpus.done"]).startswith("Tasks failed: train: failed.")


def test_a_fallback_succeeds_beside_a_task_that_skips_itself(airflow: Airflow) -> None:
    with dag() as nightly, block():
        train = Work(task_id="train", retries=0)
        train >> Work(task_id="fallback", trigger_rule="one_failed")
        train >> Work(task_id="compare", trigger_rule="all_done")
    night = airflow.begin(nightly, train="failed", compare="skipped").go_on()
    assert (night["fallback"], night["compare"]) == ("success", "skipped")
    assert (night.state, night["gpus.done"]) == ("success", "success")


def test_a_decision_before_the_block_keeps_its_nodes_from_coming(airflow: Airflow) -> None:
    with dag() as nightly:
        decide = stop()
        with block() as gpus:
            Work(task_id="train") >> Work(task_id="evaluate")
        decide >> gpus
    night = airflow.begin(nightly).go_on()
    assert night.state == "success"
    assert night.states.pop("decide") == "success"
    assert {state for name, state in night.states.items() if name != "decide"} == {"skipped"}


def test_a_decision_before_the_block_that_skips_only_what_comes_right_after_it(airflow: Airflow) -> None:
    """`begin` is skipped, and so each task that comes after it: no setup has succeeded."""
    with dag() as nightly:
        decide = stop(ignore_downstream_trigger_rules=False)
        with block() as gpus:
            Work(task_id="train")
        decide >> gpus
    night = airflow.begin(nightly).go_on()
    assert night.state == "success"
    assert {state for name, state in night.states.items() if name != "decide"} == {"skipped"}


@pytest.mark.parametrize("ignores_rules", [True, False], ids=["all downstream", "right after it"])
def test_a_decision_in_the_block_comes_too_late_for_its_nodes(airflow: Airflow, ignores_rules: bool) -> None:
    with dag() as nightly, block():
        stop(ignore_downstream_trigger_rules=ignores_rules) >> Work(task_id="train") >> Work(task_id="evaluate")
    night = airflow.begin(nightly).go_on()
    assert (night.state, night["gpus.ensure"]) == ("success", "success")
    assert (night["train"], night["evaluate"], night["gpus.scale_down"]) == ("skipped", "skipped", "success")
    assert night["gpus.done"] == "success"


def test_a_decision_in_the_block_hides_no_failure(airflow: Airflow) -> None:
    with dag() as nightly, block():
        train = Work(task_id="train", retries=0)
        train >> stop(trigger_rule="all_done") >> Work(task_id="evaluate")
    night = airflow.begin(nightly, train="failed").go_on()
    assert (night["evaluate"], night["gpus.done"], night.state) == ("skipped", "failed", "failed")


def test_a_branch_in_the_block(airflow: Airflow) -> None:
    with dag() as nightly, block():
        branch = BranchPythonOperator(task_id="branch", python_callable=lambda: "small")
        branch >> [Work(task_id="small"), Work(task_id="large")]
    night = airflow.begin(nightly).go_on()
    assert (night.state, night["small"], night["large"]) == ("success", "success", "skipped")
    assert night["gpus.scale_down"] == "success"


def test_a_branch_that_ends_the_block(airflow: Airflow) -> None:
    with dag() as nightly:
        with block():
            branch = BranchPythonOperator(task_id="branch", python_callable=lambda: "deploy")
            Work(task_id="train") >> branch
        branch >> [Work(task_id="deploy"), Work(task_id="tell")]
    night = airflow.begin(nightly).go_on()
    assert (night.state, night["deploy"], night["tell"]) == ("success", "success", "skipped")
    assert (night["gpus.after_branch"], night["gpus.scale_down"], night["gpus.done"]) == (
        "skipped",
        "success",
        "success",
    )


def without_a_block(**rule: str) -> DAG:
    with dag() as nightly:
        ensure = EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool())
        down = ScaleDownSensor(task_id="down", gpu_pool=pool(), **rule)
        ensure >> Work(task_id="train", retries=0) >> down
        if not rule:
            down.as_teardown(setups=ensure, on_failure_fail_dagrun=True)
    return nightly


@pytest.mark.parametrize("rule", [{}, {"trigger_rule": "all_done"}], ids=["teardown", "all_done"])
def test_a_scale_down_by_hand_runs_whatever_fails(airflow: Airflow, rule: dict[str, str]) -> None:
    night = airflow.begin(without_a_block(**rule), train="failed").go_on()
    assert (night["train"], night["down"]) == ("failed", "success")


def test_a_branch_skips_the_teardown_right_after_it(airflow: Airflow) -> None:
    """So the guard of Ensure refuses it, as it does a scale-down that is no teardown and that a failure skips."""
    with dag() as nightly:
        ensure = EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool())
        branch = BranchPythonOperator(task_id="branch", python_callable=lambda: "train")
        down = ScaleDownSensor(task_id="down", gpu_pool=pool()).as_teardown(setups=ensure)
        ensure >> branch >> [Work(task_id="train"), down]
    night = airflow.begin(nightly).go_on()
    assert (night.state, night["train"], night["down"]) == ("success", "success", "skipped")
    with pytest.raises(PoolSpecError, match="down comes after task ensure, and does not run if"):
        check_is_released(nightly.get_task("ensure"), nodes=1)


@pytest.mark.parametrize("small", ["failed", "skipped"])
def test_the_branch_that_was_taken_ends_otherwise(airflow: Airflow, small: str) -> None:
    with dag() as nightly, block():
        branch = BranchPythonOperator(task_id="branch", python_callable=lambda: "small")
        branch >> [Work(task_id="small"), Work(task_id="large")]
    night = airflow.begin(nightly, small=small).go_on()
    assert (night["large"], night.state) == ("skipped", {"failed": "failed", "skipped": "success"}[small])


def test_a_branch_that_leads_around_the_block(airflow: Airflow) -> None:
    with dag() as nightly:
        branch = BranchPythonOperator(task_id="branch", python_callable=lambda: "on_cpus")
        with block() as gpus:
            Work(task_id="train")
        branch >> gpus
        branch >> Work(task_id="on_cpus")
    night = airflow.begin(nightly).go_on()
    assert (night.state, night["on_cpus"]) == ("success", "success")
    assert {state for name, state in night.states.items() if name.startswith("gpus.")} == {"skipped"}
