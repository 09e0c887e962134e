"""Whatever fails under a pool's lock, the lock is given back: nobody has to wait until its time has run out."""

from __future__ import annotations

from typing import Any

import pytest
from urllib3.exceptions import ProtocolError

from airflow_gpu_provider.errors import ClusterUnreachable, DemandLockLost, GpuError
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.scaling.state.lock import PoolLock
from tests.unit.scaling.model.world import World

KEY = DemandKey(installation="airflow-0", dag_id="dag", run_id="run", pool="train")


class Failing:
    """An API server of which some requests fail: before they are done, or with only their answer lost."""

    def __init__(self, world: World, *, fails: range, is_done: bool) -> None:
        self._real = world.api.call_api
        self._fails = fails
        self._is_done = is_done
        self.count = 0

    def call_api(self, path: str, method: str, **request: Any) -> Any:
        self.count += 1
        if self.count not in self._fails:
            return self._real(path, method, **request)
        if self._is_done:
            self._real(path, method, **request)
        raise ProtocolError("aborted")


def a_change(failing_from: int, failing_to: int, *, is_done: bool) -> tuple[World, Failing, GpuError | None]:
    """Change a pool while some requests fail; returns how that ended."""
    world = World(max_nodes=1)
    reconciler = world.reconciler("one", 0)
    failing = Failing(world, fails=range(failing_from, failing_to), is_done=is_done)
    world.api.call_api = failing.call_api  # type: ignore[method-assign]
    try:
        reconciler.want(KEY, 1, world.now + world.pool.max_runtime)
    except GpuError as error:
        return world, failing, error
    return world, failing, None


def holder(world: World) -> str | None:
    lock = world.leases.get("lock-train")
    return lock["spec"].get("holderIdentity") if lock else None


@pytest.mark.parametrize("is_done", [False, True], ids=["request lost", "answer lost"])
def test_any_request_may_fail_and_the_lock_is_free_after_it(is_done: bool) -> None:
    failed = 0
    for number in range(1, 1000):
        world, failing, error = a_change(number, number + 1, is_done=is_done)
        assert holder(world) is None, f"request {number}: {error}"
        failed += isinstance(error, ClusterUnreachable)
        if failing.count < number:
            break
    assert failed > 8


def test_a_server_that_stays_away_leaves_the_lock_to_its_time_and_its_error_is_the_one_that_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    _, failing, _ = a_change(0, 0, is_done=False)
    left = 0
    for number in range(1, failing.count):
        world, _, error = a_change(number, 1000, is_done=False)
        # What nobody reads any more is no reason to fail: the usage records, and giving the lock back.
        assert error is None or "aborted" in str(error)
        assert holder(world) is None or "could not be released" in caplog.text
        left += holder(world) is not None
        caplog.clear()
    assert left > 5


def test_a_lock_that_another_has_meanwhile_is_left_to_that_one() -> None:
    world = World(max_nodes=1)
    first, second = (PoolLock(world.api, "train", "same name", clock=world.actors.clock) for _ in range(2))  # type: ignore[arg-type]
    with first, second:
        with pytest.raises(DemandLockLost):
            first.check()
        first.__exit__(None, None, None)
        second.check()
    assert holder(world) is None


def test_a_holder_that_was_stalled_gives_back_what_nobody_has_taken() -> None:
    world = World(max_nodes=1)
    with PoolLock(world.api, "train", "stalled", clock=world.actors.clock) as stalled:  # type: ignore[arg-type]
        world.actors.advance_to(31)
        with pytest.raises(DemandLockLost):
            stalled.check()
    assert holder(world) is None
