"""Errors keep their type, names and way out on every road they travel."""

from __future__ import annotations

import json
import pickle

import pytest
from airflow.sdk.definitions.retry_policy import RetryAction
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSensorTimeout

from airflow_gpu_provider import errors
from airflow_gpu_provider.retries import default_retry_policy


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
    decision = default_retry_policy().evaluate(cls("It broke."), try_number=1, max_tries=3)
    assert decision.action == (RetryAction.DEFAULT if cls.retryable else RetryAction.FAIL)
    assert cls.__doc__
