"""The installation's id: one for all workers, made once, and never a second one because Airflow did not answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_gpu_provider.tasks import run_identity
from airflow_gpu_provider.tasks.run_identity import INSTALLATION_VARIABLE, installation_id

CORDON_TO_RECHECK = 0.1


class Variables:
    """Airflow's Variables. `get` takes an error for an absent one, as the SDK's does; `keys` tells errors."""

    def __init__(self) -> None:
        self.stored: dict[str, str] = {}
        self.written: list[str] = []
        self.before_get: Callable[[str], None] = lambda name: None
        self.before_set: Callable[[str], None] = lambda name: None
        self.is_away = False

    def get(self, name: str, **default: Any) -> Any:
        try:
            self.before_get(name)
            return self.stored[name]
        except (ConnectionError, KeyError):
            if "default" not in default:
                raise
            return default["default"]

    def keys(self, prefix: str) -> list[str]:
        if self.is_away:
            raise ConnectionError
        return [name for name in self.stored if name.startswith(prefix)]

    def set(self, name: str, value: str, description: str) -> None:
        self.before_set(name)
        self.stored[name] = value
        self.written.append(name)


@pytest.fixture
def variables() -> Iterator[Variables]:
    with pytest.MonkeyPatch.context() as patch:
        yield patched(patch)


def patched(patch: pytest.MonkeyPatch) -> Variables:
    variables = Variables()
    patch.delenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", raising=False)
    patch.setattr("airflow.sdk.Variable", variables)
    patch.setattr(run_identity, "_PROPOSALS_WRITTEN_IN", CORDON_TO_RECHECK)
    return variables


def failing(times: int) -> Callable[[str], None]:
    left = iter(range(times))

    def before_get(name: str) -> None:
        if name == INSTALLATION_VARIABLE and next(left, None) is not None:
            raise ConnectionError

    return before_get


def test_it_is_made_once_and_kept(variables: Variables) -> None:
    made = installation_id()
    assert installation_id() == made == variables.stored[INSTALLATION_VARIABLE]
    assert len(variables.written) == 2


def test_no_second_one_is_made_when_the_api_fails_once(variables: Variables) -> None:
    made = installation_id()
    variables.before_get = failing(1)
    assert installation_id() == made


@pytest.mark.parametrize("is_away", [False, True], ids=["one endpoint", "all of the API"])
def test_nor_when_it_fails_for_longer_and_the_task_fails_then(variables: Variables, is_away: bool) -> None:
    made = installation_id()
    variables.before_get, variables.is_away = failing(5), is_away
    with pytest.raises(ConnectionError):
        installation_id()
    assert variables.stored[INSTALLATION_VARIABLE] == made


@settings(max_examples=15, deadline=None)
@given(late=st.lists(st.floats(0, 4 * CORDON_TO_RECHECK), min_size=2, max_size=4))
def test_workers_that_begin_together_agree_also_when_writes_of_proposals_are_held_up(late: list[float]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        variables = patched(patch)
        all_saw_none = threading.Barrier(len(late))
        delays = iter(late)

        def hold_up(name: str) -> None:
            if name != INSTALLATION_VARIABLE:
                all_saw_none.wait(60)
                time.sleep(next(delays))

        variables.before_set = hold_up
        with ThreadPoolExecutor(len(late)) as workers:
            found = {each.result() for each in [workers.submit(installation_id) for _ in late]}
    assert found == {variables.stored[INSTALLATION_VARIABLE]}
