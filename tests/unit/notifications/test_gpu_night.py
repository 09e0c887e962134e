"""GpuNightNotifier in the callbacks that Airflow makes: a DAG's, a task's, and those of a release that answers less."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog
from airflow.api_fastapi.core_api.datamodels.dag_run import DAGRunResponse
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, BaseNotifier, Context, SyncCallback
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.callback_supervisor import execute_callback
from airflow.sdk.execution_time.comms import ErrorResponse

from airflow_gpu_provider import KubernetesGpuPool
from airflow_gpu_provider.block import gpu_nodes
from airflow_gpu_provider.errors import GpuOutOfMemory, PodFailed, PoolSpecError
from airflow_gpu_provider.notifications import GpuNightNotifier
from airflow_gpu_provider.notifications.night import Night
from airflow_gpu_provider.operators.gpu_pod import GpuPodOperator
from airflow_gpu_provider.training.life.diagnosis import with_last_lines

XComs = dict[tuple[str, str], list[Any]]
OOM = {"task_id": "train", "map_index": -1, "type": "GpuOutOfMemory", "what": "It is full.", "fix": "Use a larger one."}


class TaskInstance(SimpleNamespace):
    """What Airflow's RuntimeTaskInstance answers, from dictionaries."""

    states: dict[str, str | None]
    xcoms: XComs
    run_id = "manual__1"
    dag_id = "nightly"
    task_id = "gpu.done"
    map_index = -1

    def get_task_states(self, *, dag_id: str, run_ids: list[str]) -> dict[str, Any]:
        assert dag_id == self.dag_id
        return {run_ids[0]: self.states}

    def xcom_pull(self, *, task_ids: Iterable[str], key: str) -> list[Any]:
        return [value for task_id in task_ids for value in self.xcoms.get((task_id, key), [None])]


@pytest.fixture
def dag() -> DAG:
    with DAG("nightly", schedule=None) as dag:  # noqa: SIM117 - as a DAG's author writes it
        with gpu_nodes(KubernetesGpuPool(name="gpu", nodes=["n1"], gpus_per_node=1), gpus=1):
            GpuPodOperator(task_id="train", image="train:1")
    return dag


def context(dag: DAG, xcoms: XComs, states: dict[str, str | None], **more: Any) -> Context:
    ti = TaskInstance(states=states, xcoms=xcoms, **more.pop("ti", {}))
    run = SimpleNamespace(state=SimpleNamespace(value="failed"))
    return cast("Context", {"dag": dag, "ti": ti, "run_id": ti.run_id, "dag_run": run, **more})


def sent(context: Context) -> Night:
    nights: list[Night] = []
    GpuNightNotifier(nights.append)(context)
    [night] = nights
    return night


def test_a_dag_that_has_failed(dag: DAG) -> None:
    released = {"pool": "gpu", "nodes": 0, "desired": 0, "kept": []}
    usage = {"machines": 1, "at_least": None, "cost": {"total": 2.0}, "currency": "USD"}
    xcoms = {
        ("train", "error"): [OOM],
        ("gpu.scale_down", "return_value"): [released],
        ("gpu.scale_down", "usage"): [usage],
        ("train", "advice"): [["NCCL uses NET/Socket"]],
    }
    night = sent(context(dag, xcoms, {"train": "failed", "gpu.scale_down": "success", "gpu.done": "failed"}))
    assert night.what_happened == (
        "nightly manual__1: failed. train: GpuOutOfMemory: It is full. Use a larger one. gpu.done failed."
    )
    assert night.what_it_took == "cost 2.00 USD; all nodes released."
    assert night.advice == ("NCCL uses NET/Socket",)


def test_what_a_training_printed_is_sent_only_if_asked(dag: DAG) -> None:
    failed = {
        **OOM,
        "fix": "Shrink it. Its last lines:\npatient_12",
        "without_log": {"what": "Full.", "fix": "Shrink it."},
    }
    of_run = context(dag, {("train", "error"): [failed]}, {"train": "failed"})
    error = with_last_lines(PodFailed("It failed.", "Correct it."), ["patient_12"])
    of_task = context(dag, {}, {"train": "running"}, exception=error, ti={"task_id": "train"})
    briefs = ["train: GpuOutOfMemory: Full. Shrink it.", "train: PodFailed: It failed. Correct it."]
    for seen, brief in zip((of_run, of_task), briefs, strict=True):
        night = sent(seen)
        assert [str(each) for each in night.failures] == [brief]
        nights: list[Night] = []
        GpuNightNotifier(nights.append, with_log=True)(seen)
        assert "patient_12" in nights[0].what_happened
        assert "patient_12" not in f"{night}{night.in_words}"


def test_a_run_that_its_dagrun_timeout_ended_says_so(dag: DAG) -> None:
    dag.dagrun_timeout = timedelta(hours=2)
    seen = context(dag, {}, {"gpu.scale_down": "success"}, reason="timed_out")
    limit = "nightly manual__1: failed, for it ran longer than its dagrun_timeout of 2 h 0 min."
    assert sent(seen).what_happened == limit


def test_an_error_before_a_try_that_succeeded_is_not_told(dag: DAG) -> None:
    assert sent(context(dag, {("train", "error"): [OOM]}, {"train": "success"})).failures == []


@pytest.mark.parametrize("value", [0.07, "5 s", [1, 2], {"task_id": "train"}, {"type": 3}, [{"phase": "ran"}], None])
@pytest.mark.parametrize("key", ["error", "timeline", "advice"])
def test_a_result_that_takes_the_place_of_a_fact_stops_no_notification(dag: DAG, key: str, value: Any) -> None:
    """A training with multiple_outputs=True may return {"error": 0.07}."""
    night = sent(context(dag, {("train", key): [value]}, {"train": "failed"}))
    assert night.what_happened == "nightly manual__1: failed. train failed."


def test_mapped_tasks_are_told_apart(dag: DAG) -> None:
    xcoms = {("train", "error"): [{**OOM, "map_index": 3}]}
    night = sent(context(dag, xcoms, {"train_2": "success", "train_3": "failed"}))
    assert [each.task for each in night.failures] == ["train[3]"]


def test_a_task_of_the_authors_own_that_failed_is_named(dag: DAG) -> None:
    assert "extract failed." in sent(context(dag, {}, {"extract": "failed"})).what_happened


def test_a_tasks_own_callback_has_its_exception(dag: DAG) -> None:
    """Airflow calls it while the task's state is still "running"."""
    seen = context(
        dag,
        {("train", "error"): [OOM]},
        {"train": "running"},
        exception=GpuOutOfMemory("Full.", "Shrink it."),
        ti={"task_id": "train"},
    )
    assert str(sent(seen).failures[0]) == "train: GpuOutOfMemory: Full. Shrink it."


def test_an_exception_of_airflows_is_told_by_its_first_line(dag: DAG) -> None:
    seen = context(dag, {}, {}, exception=ValueError("no such thing\nin no place"), ti={"task_id": "train"})
    assert str(sent(seen).failures[0]) == "train: ValueError: no such thing"


def test_a_scale_down_that_failed_may_have_left_machines(dag: DAG) -> None:
    night = sent(context(dag, {}, {"gpu.scale_down": "failed"}))
    assert night.left == "machines may be left, for gpu.scale_down failed"


def test_one_of_several_scale_downs_that_failed_is_not_hidden_by_the_others(dag: DAG) -> None:
    released = {"pool": "gpu", "nodes": 0, "desired": 0, "kept": []}
    states: dict[str, str | None] = {"gpu.scale_down_0": "success", "gpu.scale_down_1": "failed"}
    night = sent(context(dag, {("gpu.scale_down", "return_value"): [released]}, states))
    assert night.left == "all nodes released; machines may be left, for gpu.scale_down failed"


def test_a_run_that_has_begun_nothing_has_started_no_node(dag: DAG) -> None:
    released = {"pool": "gpu", "nodes": 0, "desired": 0, "kept": [], "nothing_begun": True}
    xcoms: XComs = {("gpu.scale_down", "return_value"): [released]}
    assert sent(context(dag, xcoms, {"gpu.scale_down": "success"})).left == "no node was started"


def test_a_scale_down_that_was_skipped_is_not_waited_for(dag: DAG) -> None:
    states: dict[str, str | None] = {"gpu.ensure": "success", "gpu.scale_down": "skipped"}
    assert sent(context(dag, {}, states)).left == "gpu.scale_down was skipped: see the command airflow gpu status"
    states["gpu.ensure"] = "skipped"
    assert sent(context(dag, {}, states)).left == "no node was started"


def test_nodes_that_are_kept_are_told(dag: DAG) -> None:
    kept = {"pool": "gpu", "nodes": 2, "desired": 2, "kept": ["kept: min_nodes=2"]}
    night = sent(context(dag, {("gpu.scale_down", "return_value"): [kept]}, {}))
    assert night.left == "pool gpu keeps 2 of its nodes (kept: min_nodes=2)"


def test_airflow_that_does_not_answer_stops_no_message(dag: DAG, caplog: pytest.LogCaptureFixture) -> None:
    class Silent(TaskInstance):
        def get_task_states(self, **_: Any) -> dict[str, Any]:
            raise AirflowRuntimeError(ErrorResponse(error=ErrorType.GENERIC_ERROR, detail={"message": "Unhandled"}))

        xcom_pull = get_task_states

    seen = context(dag, {}, {}, exception=GpuOutOfMemory("Full.", "Shrink it."))
    cast("dict[str, Any]", seen)["ti"] = Silent(states={}, xcoms={}, task_id="train")
    night = sent(seen)
    assert "train: GpuOutOfMemory: Full. Shrink it." in night.what_happened
    assert night.what_it_took == "Airflow did not say what is left: see the command airflow gpu status."
    assert "leaves out what Airflow did not answer" in caplog.text


def test_a_run_whose_last_task_left_the_dag_file(dag: DAG) -> None:
    """Airflow calls a DAG's callback without a task instance then."""
    night = sent(cast("Context", {"dag": dag, "run_id": "manual__1", "reason": "task_failure"}))
    assert night.what_happened == "nightly manual__1: task_failure."
    assert night.what_it_took.startswith("Airflow did not say what is left")


def test_a_dag_without_a_block_has_no_scale_down_to_come() -> None:
    with DAG("plain", schedule=None) as plain:
        EmptyOperator(task_id="extract")
    assert sent(context(plain, {"extract": "failed"}, {})).what_it_took == "The DAG has no scale-down."


LATE: list[Night] = []


def late(context: Context) -> None:
    """What a DAG's author gives to a SyncCallback."""
    GpuNightNotifier(LATE.append)(context)


def test_a_run_past_its_deadline() -> None:
    """As Airflow's executor calls it, with the context that `Deadline.handle_miss` makes."""
    run = {"dag_id": "nightly", "dag_run_id": "manual__1", "state": "running"}
    assert set(DAGRunResponse.model_fields) >= set(run)
    seen = {"dag_run": run, "deadline": {"id": "0", "deadline_time": "2026-03-01T09:00:00+00:00"}}
    callback = SyncCallback(late)
    assert execute_callback(callback.path, {"context": seen}, Path(__file__), None, structlog.get_logger()) == (
        True,
        None,
    )
    [night] = LATE
    assert night.in_words == (
        "nightly manual__1: running, past its deadline of 2026-03-01T09:00:00+00:00.\n"
        "Airflow tells no more at a deadline."
    )


class Mail(BaseNotifier):
    template_fields = ("text",)
    sent: list[str] = []

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def notify(self, context: Context) -> None:
        self.sent.append(self.text)


def test_a_notifier_of_airflows_has_the_night_in_its_templates_each_time(dag: DAG) -> None:
    Mail.sent.clear()
    notifier = GpuNightNotifier(Mail("{{ night.what_happened }} {{ dag.dag_id }}"))
    notifier(context(dag, {("train", "error"): [OOM]}, {"train": "failed"}))
    notifier(context(dag, {}, {}))
    assert Mail.sent == [
        "nightly manual__1: failed. train: GpuOutOfMemory: It is full. Use a larger one. nightly",
        "nightly manual__1: failed. nightly",
    ]


def test_one_that_fails_silences_no_other(dag: DAG) -> None:
    nights: list[Night] = []

    def down(_: Night) -> None:
        raise ConnectionError("chat is down")

    with pytest.raises(ExceptionGroup, match="could not be sent"):
        GpuNightNotifier(down, nights.append)(context(dag, {}, {}))
    assert len(nights) == 1


async def later(night: Night) -> None:
    """A function of which a callback would make a coroutine, and nothing else."""


@pytest.mark.parametrize("given", ["#ml", BaseNotifier, later], ids=["no function", "a class", "async"])
def test_what_would_send_nothing_is_refused_when_the_dag_is_parsed(given: Any) -> None:
    with pytest.raises(PoolSpecError, match=re.escape(repr(given))):
        GpuNightNotifier(given)
