"""The pool's lock on an API server, in virtual time: one holder at a time, and none that has stalled."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_gpu_provider.cluster.api.rest import MERGE_PATCH, call
from airflow_gpu_provider.cluster.model.lease import LEASES
from airflow_gpu_provider.errors import DemandLockBusy, DemandLockLost
from airflow_gpu_provider.scaling.state.lock import PoolLock
from tests.fakes.api_server import ApiServer
from tests.fakes.clients import FakeApiClient
from tests.fakes.clock import VirtualClock

POOL = "train"


class Api(FakeApiClient):
    """A client, and the time that its process goes by.

    Attributes:
        stall: For so many seconds the process sleeps while a request is answered, as on a machine that is suspended.
    """

    stall = 0.0

    def __init__(self, clock: VirtualClock, server: ApiServer) -> None:
        self.clock = clock
        super().__init__(server)

    def call_api(self, path: str, method: str, **request: Any) -> Any:
        answer = super().call_api(path, method, **request)
        self.clock.sleep(self.stall)
        return answer

    def lock(self, holder: str, **seconds: float) -> PoolLock:
        """Return a lock; `seconds` are those of its arguments."""
        arguments: Any = {name: timedelta(seconds=value) for name, value in seconds.items()}
        return PoolLock(self, POOL, holder, clock=self.clock, **arguments)  # type: ignore[arg-type]


@pytest.fixture
def api() -> Api:
    clock = VirtualClock()
    return Api(clock, ApiServer(clock.now))


def test_the_lock_is_one_holder_s_and_can_be_taken_again(api: Api) -> None:
    with api.lock("a") as first:
        first.check()
        with pytest.raises(DemandLockBusy, match="being changed by a"), api.lock("b", timeout=0.3):
            pass
        first.check()
    with api.lock("b", timeout=0.3) as second:
        second.check()


def test_a_stalled_holder_finds_the_lock_lost(api: Api) -> None:
    stalled = api.lock("stalled", duration=1)
    stalled.__enter__()
    with api.lock("next", timeout=120) as later:
        with pytest.raises(DemandLockLost, match="stalled stalled and lost the lock"):
            stalled.check()
        stalled.__exit__(None, None, None)
        later.check()


def test_a_holder_that_stalls_in_its_check_has_lost_the_lock_though_nobody_took_it(api: Api) -> None:
    suspended = Api(api.clock, api.server)
    with suspended.lock("a") as holder:
        holder.check()
        suspended.stall = 60.0
        with pytest.raises(DemandLockLost, match="a stalled and lost the lock"):
            holder.check()
        suspended.stall = 0.0
    with api.lock("b", timeout=0.3) as second:  # it was given back all the same
        second.check()


def test_a_lock_that_somebody_deletes_is_free_and_its_holder_stops(api: Api) -> None:
    with api.lock("a") as first:
        call(api, "delete", f"{LEASES}/{first.name}", resource="leases")  # type: ignore[arg-type]
        with api.lock("b", timeout=120) as second:
            with pytest.raises(DemandLockLost):
                first.check()
            second.check()


def test_a_lock_that_somebody_deletes_and_nobody_takes_stays_its_holder_s(api: Api) -> None:
    with api.lock("a") as first:
        call(api, "delete", f"{LEASES}/{first.name}", resource="leases")  # type: ignore[arg-type]
        first.check()
        with pytest.raises(DemandLockBusy, match="being changed by a"), api.lock("b", timeout=0.3):
            pass
    with api.lock("b", timeout=0.3) as second:
        second.check()


def test_a_check_notices_that_another_has_it_before_the_time_is_over(api: Api) -> None:
    holder = api.lock("a")
    holder.__enter__()
    body = {"spec": {"holderIdentity": "b"}}
    call(api, "patch", f"{LEASES}/{holder.name}", resource="leases", body=body, content_type=MERGE_PATCH)  # type: ignore[arg-type]
    with pytest.raises(DemandLockLost):
        holder.check()
