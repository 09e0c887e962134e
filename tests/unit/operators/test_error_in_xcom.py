"""The error that ends a task is left in XCom, for notifications and the page, and counts whatever becomes of that."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.sdk import Context
from airflow.sdk.exceptions import TaskDeferred
from airflow.sdk.log import mask_secret

from airflow_gpu_provider.errors import GpuOutOfMemory, PodFailed
from airflow_gpu_provider.tasks.pool_operator import ERROR, PoolOperator
from airflow_gpu_provider.training.life.diagnosis import with_last_lines


class Training(PoolOperator):
    raised: BaseException
    log = logging.getLogger(__name__)  # Airflow's own does not propagate

    def execute(self, context: Context) -> None:
        raise self.raised

    def resume(self, context: Context, event: Any) -> None:
        raise self.raised


class TrainingOfTheirOwn(Training):
    def execute(self, context: Context) -> None:
        super().execute(context)


def operator(raised: BaseException, cls: type[Training] = Training) -> Training:
    made = cls(task_id="train")
    made.raised = raised
    return made


def context(push: Any) -> Context:
    return cast("Context", {"ti": SimpleNamespace(task_id="train", map_index=3, xcom_push=push)})


@pytest.mark.parametrize("cls", [Training, TrainingOfTheirOwn])
def test_an_error_of_execute(cls: type[Training]) -> None:
    pushed: dict[str, Any] = {}
    with pytest.raises(GpuOutOfMemory):
        operator(GpuOutOfMemory("Full.", "Shrink it."), cls).execute(
            context(lambda key, value: pushed.update({key: value}))
        )
    assert pushed == {
        ERROR: {"task_id": "train", "map_index": 3, "type": "GpuOutOfMemory", "what": "Full.", "fix": "Shrink it."}
    }


def test_an_error_after_a_deferral() -> None:
    pushed: dict[str, Any] = {}
    with pytest.raises(GpuOutOfMemory):
        operator(GpuOutOfMemory("Full.")).resume_execution(
            "resume", {"event": {}}, context(lambda key, value: pushed.update({key: value}))
        )
    assert pushed[ERROR]["type"] == "GpuOutOfMemory"


@pytest.mark.parametrize("raised", [TaskDeferred(trigger=None, method_name="resume"), ValueError("of the author's")])
def test_what_is_no_error_of_ours_leaves_none(raised: BaseException) -> None:
    pushed: dict[str, Any] = {}
    with pytest.raises(type(raised)):
        operator(raised).execute(context(lambda key, value: pushed.update({key: value})))
    assert not pushed


def test_what_quotes_a_log_is_there_without_it_too() -> None:
    pushed: dict[str, Any] = {}
    with pytest.raises(PodFailed):
        operator(with_last_lines(PodFailed("It failed.", "Correct it."), ["KeyError"])).execute(
            context(lambda key, value: pushed.update({key: value}))
        )
    assert pushed[ERROR]["fix"] == "Correct it. Its last lines:\nKeyError"
    assert pushed[ERROR]["without_log"] == {"what": "It failed.", "fix": "Correct it."}


def test_a_secret_in_a_quoted_line_is_masked() -> None:
    mask_secret("hunter2-of-the-night")
    pushed: dict[str, Any] = {}
    with pytest.raises(GpuOutOfMemory):
        operator(GpuOutOfMemory("It said: token=hunter2-of-the-night.")).execute(
            context(lambda key, value: pushed.update({key: value}))
        )
    assert pushed[ERROR]["what"] == "It said: token=***."


def test_an_xcom_that_cannot_be_written_hides_no_error(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(**_: Any) -> None:
        raise ConnectionError("the API server does not answer")

    with pytest.raises(GpuOutOfMemory, match=r"Full\."):
        operator(GpuOutOfMemory("Full.")).execute(context(refuse))
    assert "could not be stored in XCom" in caplog.text
