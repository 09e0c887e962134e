"""Errors keep their type, names and way out on every road they travel."""

from __future__ import annotations

import json
import pickle
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.definitions.retry_policy import RetryAction
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSensorTimeout

from airflow_gpu_provider import errors
from airflow_gpu_provider.tasks.pool_operator import DEFAULT_RETRY_POLICY

DOCS = Path(__file__).parents[2] / "docs"
RETRIES, ENDS = DOCS / "errors.md", DOCS / "running.md"


@pytest.mark.parametrize("cls", errors.error_types(), ids=lambda cls: cls.__name__)
def test_every_error_survives_a_trigger_event_and_a_pickle(cls: type[errors.GpuError]) -> None:
    error = cls("Pool train-gpu: it broke.", "Mend it.", pool="train-gpu", code="L-DB2E81BA")
    for again in (
        errors.GpuError.from_record(json.loads(json.dumps(error.to_record()))),
        pickle.loads(pickle.dumps(error)),
    ):
        assert type(again) is cls
        assert str(again) == "Pool train-gpu: it broke. Mend it."
        assert again.details == {"pool": "train-gpu", "code": "L-DB2E81BA"}


def test_an_error_of_a_newer_release_is_still_an_error() -> None:
    error = errors.GpuError.from_record({"type": "FromTomorrow", "what": "It broke.", "fix": ""})
    assert type(error) is errors.GpuError
    assert str(error) == "It broke."


@pytest.mark.parametrize("cls", errors.error_types(), ids=lambda cls: cls.__name__)
def test_retry_policy_sees_every_error_and_gives_up_where_the_type_says_so(cls: type[errors.GpuError]) -> None:
    assert issubclass(cls, AirflowException)
    assert not issubclass(cls, AirflowFailException | AirflowSensorTimeout)
    decision = DEFAULT_RETRY_POLICY.evaluate(cls("It broke."), try_number=1, max_tries=3)
    assert decision.action == (RetryAction.DEFAULT if cls.retryable else RetryAction.FAIL)
    assert cls.__doc__


def test_the_documented_policy_acts_on_each_end_of_a_pod() -> None:
    (code,) = [
        code for code in re.findall(r"```python\n(.*?)```", RETRIES.read_text(), re.DOTALL) if "RetryRule(" in code
    ]
    given: dict[str, Any] = {}
    exec(code.replace("GpuPodOperator(..., ", "given.update("), {"given": given, "timedelta": timedelta})
    policy, unnamed = given["retry_policy"], {errors.PodFailed}
    others = {errors.OutOfStock, errors.QuotaExceeded, errors.PodResultLost}
    for cls in ({*errors.PodFailed.__subclasses__()} | others) - unnamed:
        action = policy.evaluate(cls("It broke."), try_number=1, max_tries=3).action
        named = RetryAction.RETRY if cls.retryable else RetryAction.FAIL
        assert action == (RetryAction.FAIL if cls in (errors.DriverMissing, errors.PodDeadline) else named)
    assert policy.evaluate(errors.PodFailed("Exit code 1."), try_number=1, max_tries=3).action == RetryAction.DEFAULT


def test_the_table_of_a_pods_ends_names_each_and_says_whether_another_try_helps() -> None:
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| .* \| ((?:yes|no)[^|]*) \|$", ENDS.read_text(), re.MULTILINE)
    told = {}
    for names, tries in rows:
        names, tries = re.findall(r"`(\w+)`", names), re.findall(r"\b(?:yes|no)\b", tries)
        told |= dict(zip(names, tries * len(names) if len(tries) == 1 else tries, strict=True))
    ends = {
        errors.PodFailed,
        *errors.PodFailed.__subclasses__(),
        errors.BudgetExceeded,
        errors.OutOfStock,
        errors.QuotaExceeded,
        errors.PodResultLost,
        errors.TaskKilled,
    }
    assert told == {cls.__name__: "yes" if cls.retryable else "no" for cls in ends}
