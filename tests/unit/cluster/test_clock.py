"""The API server's time, as machines whose own clocks are wrong know it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.client.exceptions import ApiException

from airflow_gpu_provider.cluster.api.access import ClusterAccess
from airflow_gpu_provider.cluster.api.async_api import AsyncApi
from airflow_gpu_provider.cluster.api.clock import ServerClock, SystemClock, ahead
from airflow_gpu_provider.errors import ClusterUnreachable, CredentialsError
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.scaling.state.demand import DemandLease

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
KEY = DemandKey(installation="a", dag_id="dag", run_id="run", pool="train")

wrong = st.timedeltas(timedelta(days=-1), timedelta(days=1))
fractions = st.timedeltas(timedelta(0), timedelta(seconds=1))
trips = st.floats(0, 5)


class World:
    """The true time, an API server that has it, and machines that need not."""

    def __init__(self, now: datetime = NOON) -> None:
        self.now = now
        self.asked = 0
        self.trip = (0.0, 0.0)  # seconds that a question and its answer are on their ways
        self.refusal: ApiException | None = None
        self.tells = True

    def pass_by(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def call_api(self, path: str, method: str, **request: Any) -> Any:
        there, back = self.trip
        self.asked += 1
        self.pass_by(there)
        headers = {"Date": format_datetime(self.now, usegmt=True)} if self.tells else {}
        self.pass_by(back)
        if self.refusal:
            self.refusal.headers = headers
            raise self.refusal
        return {}, 200, headers


class Machine:
    """A machine's clocks."""

    def __init__(self, world: World, wrong_by: timedelta) -> None:
        self._world = world
        self.wrong_by = wrong_by
        self.slept = 0.0

    def now(self) -> datetime:
        return self._world.now + self.wrong_by

    def of_local(self, at: datetime) -> datetime:
        return at

    def monotonic(self) -> float:
        return (self._world.now - NOON).total_seconds() - self.slept

    def sleep(self, seconds: float) -> None:
        self._world.pass_by(seconds)


def clock_of(world: World, wrong_by: timedelta = timedelta(0)) -> tuple[ServerClock, Machine]:
    machine = Machine(world, wrong_by)
    return ServerClock(world, machine), machine  # type: ignore[arg-type]


def seconds_off(clock: ServerClock, world: World) -> float:
    return abs((clock.now() - world.now).total_seconds())


@given(wrong, fractions, trips, st.floats(0, 1), st.floats(0, 3600))
def test_the_time_is_the_server_s_however_wrong_the_machine_is(
    wrong_by: timedelta, fraction: timedelta, trip: float, share: float, later: float
) -> None:
    world = World(NOON + fraction)
    world.trip = (trip * share, trip * (1 - share))
    clock, machine = clock_of(world, wrong_by)
    right_to = 0.5 + trip / 2 + 1e-3
    assert seconds_off(clock, world) <= right_to
    world.pass_by(later)
    assert seconds_off(clock, world) <= right_to
    assert abs((clock.of_local(machine.now()) - world.now).total_seconds()) <= right_to


@given(wrong, wrong, fractions, st.integers(0, 60), st.integers(-60, 60))
def test_demand_that_one_installation_writes_ends_for_another_when_it_should(
    first: timedelta, second: timedelta, fraction: timedelta, until: int, off: int
) -> None:
    world = World(NOON + fraction)
    writer, reader = clock_of(world, first)[0], clock_of(world, second)[0]
    wanted_at = world.now
    lease = DemandLease(key=KEY, nodes=1, until=writer.now() + timedelta(minutes=until), created_at=writer.now())
    again = DemandLease.parse(lease.manifest())
    world.pass_by(max(0, until * 60 + off))
    true_end = wanted_at + timedelta(minutes=until)
    if abs((world.now - true_end).total_seconds()) > 1:
        assert again.live(reader.now()) == (world.now < true_end)


def test_the_server_is_asked_once_and_again_after_ten_minutes() -> None:
    world = World()
    clock, _ = clock_of(world, timedelta(minutes=7))
    for _ in range(3):
        clock.now()
    world.pass_by(599)
    clock.now()
    assert world.asked == 1
    world.pass_by(2)
    clock.now()
    assert world.asked == 2


@given(wrong.filter(lambda by: abs(by) > timedelta(seconds=2)))
def test_a_machine_whose_clock_is_set_asks_again(by: timedelta) -> None:
    world = World()
    clock, machine = clock_of(world)
    clock.now()
    machine.wrong_by += by
    assert seconds_off(clock, world) <= 0.5
    assert world.asked == 2


def test_a_machine_that_slept_asks_again() -> None:
    """Its seconds were not counted meanwhile."""
    world = World()
    clock, machine = clock_of(world)
    clock.now()
    world.pass_by(120)
    machine.slept = 120
    machine.wrong_by = timedelta(seconds=-120)  # until it has asked a time server
    assert seconds_off(clock, world) > 100  # nothing in it tells
    machine.wrong_by = timedelta(0)
    assert seconds_off(clock, world) <= 0.5


def test_an_answer_that_took_too_long_is_asked_for_again() -> None:
    class StoppedOnce(World):
        def call_api(self, path: str, method: str, **request: Any) -> Any:
            self.trip = (3600.0, 0.0) if self.asked == 0 else (0.0, 0.0)
            return super().call_api(path, method, **request)

    world = StoppedOnce()
    clock, _ = clock_of(world, timedelta(minutes=-20))
    assert seconds_off(clock, world) <= 0.5
    assert world.asked == 2

    slow = World()
    slow.trip = (0.0, 6.0)
    with pytest.raises(ClusterUnreachable, match="to tell its time"):
        clock_of(slow)[0].now()


def test_a_refusal_tells_the_time_too_and_what_the_credentials_are_worth_is_said() -> None:
    world = World()
    clock, _ = clock_of(world, timedelta(minutes=9))
    world.refusal = ApiException(status=403, reason="Forbidden")
    assert seconds_off(clock, world) <= 0.5
    for status, error in ((401, CredentialsError), (502, ClusterUnreachable)):
        world.refusal = ApiException(status=status, reason="No")
        with pytest.raises(error):
            clock_of(world)[0].now()


def test_without_a_date_the_machine_s_own_clock_counts_and_a_warning_says_so(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.tells = False
    clock, machine = clock_of(world, timedelta(minutes=9))
    assert clock.now() == machine.now()
    assert "have no Date header" in caplog.text


def test_a_date_is_read_to_half_a_second() -> None:
    assert ahead("Sun, 01 Mar 2026 12:00:00 GMT", NOON, 0.0) == timedelta(seconds=0.5)
    assert ahead("Sun, 01 Mar 2026 12:00:00 GMT", NOON + timedelta(hours=1), 2.0) == timedelta(hours=-1, seconds=1.5)
    assert ahead("Sun, 01 Mar 2026 12:00:00 GMT", NOON, 6.0) is None


@contextmanager
def a_server(ahead_by: timedelta) -> Iterator[str]:
    """An API server whose clock is another than this machine's."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response_only(200)
            self.send_header("Date", format_datetime(datetime.now(UTC) + ahead_by, usegmt=True))
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer is also taken that a busy machine was long in giving."""
    monkeypatch.setattr("airflow_gpu_provider.cluster.api.clock._SLOW", 60.0)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("minutes", [-8, 0, 8])
def test_both_clients_have_the_server_s_time(minutes: int) -> None:
    async def in_a_triggerer(access: ClusterAccess) -> datetime:
        api = AsyncApi(access)
        try:
            return await api.now()
        finally:
            await api.close()

    with a_server(timedelta(minutes=minutes)) as url:
        access = ClusterAccess(server=url)
        times = [ServerClock(access.api_client()).now(), asyncio.run(in_a_triggerer(access))]
    for time in times:
        off = time - datetime.now(UTC) - timedelta(minutes=minutes)
        assert abs(off.total_seconds()) < 30


class SetLater(SystemClock):
    """A machine's clock that somebody sets."""

    def __init__(self) -> None:
        self.set_by = timedelta(0)

    def now(self) -> datetime:
        return super().now() + self.set_by


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("server_is_there", [True, False])
@pytest.mark.parametrize("hours", [-3, 3])
def test_a_triggerer_whose_clock_is_set_keeps_the_server_s_time(hours: int, server_is_there: bool) -> None:
    """Its watches may be quiet for minutes, and no answer comes meanwhile."""

    async def now(url: str, stop: Callable[[], None]) -> datetime:
        local = SetLater()
        api = AsyncApi(ClusterAccess(server=url), local)
        try:
            await api.now()
            if not server_is_there:
                stop()
            local.set_by = timedelta(hours=hours)
            return await api.now()
        finally:
            await api.close()

    with contextlib.ExitStack() as server:
        url = server.enter_context(a_server(timedelta(minutes=8)))
        found = asyncio.run(now(url, server.close))
    off = found - datetime.now(UTC) - timedelta(minutes=8)
    assert abs(off.total_seconds()) < 30


def test_a_server_that_is_away_is_not_asked_for_the_time_by_each_who_waits() -> None:
    async def requests() -> int:
        api = AsyncApi(ClusterAccess(server="http://127.0.0.1:1"))
        asked: list[str] = []
        real = api.get

        async def get(path: str, **params: str) -> Any:
            asked.append(path)
            return await real(path, **params)

        api.get = get  # type: ignore[method-assign]
        try:
            await asyncio.gather(*[api.now() for _ in range(20)])
        finally:
            await api.close()
        return len(asked)

    assert asyncio.run(requests()) == 1


def test_a_triggerer_goes_by_its_own_clock_while_the_server_has_never_answered() -> None:
    async def now() -> datetime:
        api = AsyncApi(ClusterAccess(server="http://127.0.0.1:1"))
        try:
            return await api.now()
        finally:
            await api.close()

    assert abs((asyncio.run(now()) - datetime.now(UTC)).total_seconds()) < 30
