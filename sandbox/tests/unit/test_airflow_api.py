"""Waiting on Airflow's API: an answer that is late is waited for, a refusal is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpu_sandbox.airflow_api import AirflowApiError, AirflowApiSilent, wait_until


def answers(*each: bool | AirflowApiError) -> Callable[[], bool]:
    rest = iter(each)

    def condition() -> bool:
        answer = next(rest)
        if isinstance(answer, AirflowApiError):
            raise answer
        return answer

    return condition


def test_a_late_answer_is_asked_for_again() -> None:
    wait_until(answers(False, AirflowApiSilent("no answer"), True), timeout=60, what="it", every=0)


def test_a_refusal_is_raised() -> None:
    with pytest.raises(AirflowApiError, match="no such run"):
        wait_until(answers(AirflowApiError("no such run"), True), timeout=60, what="it", every=0)


def test_an_api_that_stays_silent_is_given_up() -> None:
    with pytest.raises(AirflowApiError, match="waited 0 s in vain for it"):
        wait_until(answers(AirflowApiSilent("no answer"), AirflowApiSilent("no answer")), timeout=0, what="it", every=0)
