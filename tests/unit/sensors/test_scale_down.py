"""ScaleDownSensor when calls fail: what it bears, what it hands to its trigger, and what its error says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.definitions.retry_policy import RetryAction
from airflow.sdk.exceptions import TaskDeferred

from airflow_gpu_provider.cluster.api.clock import SystemClock
from airflow_gpu_provider.errors import (
    CloudError,
    ClusterNotFound,
    ClusterUnreachable,
    ConnectionNotFound,
    CredentialsError,
    GpuError,
    PermissionDenied,
    PoolNotReleased,
    PoolSpecError,
)
from airflow_gpu_provider.money.bill import PHASES, Bill
from airflow_gpu_provider.scaling.wait import pool_loop
from airflow_gpu_provider.sensors import scale_down as module
from airflow_gpu_provider.sensors.not_released import not_released
from airflow_gpu_provider.sensors.scale_down import ScaleDownSensor, _released
from airflow_gpu_provider.triggers import record
from tests.sandbox.running import context_of, copy_of, first_event
from tests.unit.scaling.pools import NOW, A, B, groups, key, machine, pool, snapshot

BILL = Bill(seconds=dict.fromkeys(PHASES, 60.0), cost=dict.fromkeys(PHASES, 0.41), currency="EUR", machines=1)


class Played:
    """A pool that can be opened, and released, as a list of answers says; its last answer is its answer for ever."""

    pool = pool()

    def __init__(self, *answers: GpuError | Any) -> None:
        self._answers = list(answers)
        self.calls: list[str] = []
        self.clock = SystemClock()
        self.platform = SimpleNamespace(cluster_access=lambda: None)
        self.ledger = SimpleNamespace(bill=lambda *_, **__: BILL)

    def open(self, *_: Any, **__: Any) -> Played:
        if self._answers and isinstance(self._answers[0], ConnectionNotFound | CredentialsError | ClusterNotFound):
            raise self._answers.pop(0)
        return self

    def release(self, key: Any) -> Any:
        self.calls.append("release")
        return self._answer()

    def reconcile(self, *, admits: bool = False) -> Any:
        self.calls.append("reconcile")
        return self._answer()

    def snapshot(self) -> Any:
        return with_a_machine()

    def _answer(self) -> Any:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, GpuError):
            raise answer
        return SimpleNamespace(snapshot=replace(answer, now=self.clock.now()), log_lines=(), uncollected=())


def with_a_machine() -> Any:
    return snapshot(machine(1))


@pytest.fixture
def opens(monkeypatch: pytest.MonkeyPatch) -> Callable[[Played], None]:
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")
    monkeypatch.setattr(module, "_FIRST_LEG", timedelta(0))
    monkeypatch.setattr(module.time, "sleep", lambda seconds: None)

    def use(played: Played) -> None:
        monkeypatch.setattr("airflow_gpu_provider.scaling.apply.reconcile.open_pool", played.open)
        monkeypatch.setattr(pool_loop, "open_pool", played.open)

    monkeypatch.setattr(pool_loop, "SOONEST", 0.0)
    monkeypatch.setattr(record, "EVENT_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(pool_loop, "watching", _refuses)
    return use


def _refuses(*_: Any) -> Any:
    raise ClusterUnreachable("Away.")


def a_sensor(**arguments: Any) -> ScaleDownSensor:
    return ScaleDownSensor(task_id="zero", gpu_pool=pool(), **arguments)


PASSING = [
    ConnectionNotFound("No connection."),
    CredentialsError("Who?"),
    ClusterUnreachable("Away."),
    CloudError("Throttled."),
    PermissionDenied("No."),
]


@pytest.mark.parametrize("error", PASSING, ids=lambda error: type(error).__name__)
def test_a_first_leg_that_fails_goes_on_in_the_triggerer(opens: Any, error: GpuError) -> None:
    opens(Played(error, error, error))
    sensor = a_sensor()
    with pytest.raises(TaskDeferred) as deferral:
        sensor.execute(context_of(sensor))
    record = deferral.value.trigger.record
    assert not record["wait"]["begun"]
    assert datetime.fromisoformat(record["wait"]["deadline"]) > datetime.now(UTC) + timedelta(minutes=29)


@pytest.mark.parametrize("error", PASSING, ids=lambda error: type(error).__name__)
def test_the_trigger_gives_up_the_run_s_share_where_its_task_could_not(opens: Any, error: GpuError) -> None:
    opens(Played(error, error))
    sensor = a_sensor()
    with pytest.raises(TaskDeferred) as deferral:
        sensor.execute(context_of(sensor))
    played = Played(error, error, with_a_machine(), snapshot())
    opens(played)
    event = asyncio.run(first_event(copy_of(deferral.value.trigger)))
    assert event["status"] == "done", event
    assert played.calls.count("reconcile") >= 1
    assert played.calls.index("reconcile") > played.calls.index("release")


@pytest.mark.parametrize("error", PASSING, ids=lambda error: type(error).__name__)
def test_poke_mode_goes_on_too(opens: Any, error: GpuError) -> None:
    opens(Played(error, error, snapshot()))
    sensor = a_sensor(deferrable=False, poke_interval=0.01)
    assert sensor.execute(context_of(sensor))["nodes"] == 0


NO_ACCESS = [
    ConnectionNotFound.named("aws_ml", "aws_conn_id"),
    CredentialsError("AWS does not accept the credentials of aws_ml.", "Put valid ones into it."),
    ClusterNotFound("There is no EKS cluster k8s-ml in us-west-2.", "Check cluster_name and region."),
]
of_its_type = pytest.mark.parametrize("error", NO_ACCESS, ids=lambda error: type(error).__name__)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[], timedelta]:
    """Ten seconds pass from look to look; returns how many have."""
    passed = [timedelta(0)]

    def now(_: Any) -> datetime:
        passed[0] += timedelta(seconds=10)
        return NOW + passed[0]

    monkeypatch.setattr(SystemClock, "now", now)
    return lambda: passed[0]


def decision_on(error: BaseException, sensor: ScaleDownSensor) -> RetryAction:
    policy = sensor.retry_policy
    assert policy is not None
    return policy.evaluate(error, try_number=1, max_tries=3).action


def test_what_fails_for_the_whole_timeout_is_an_error_that_is_tried_again(opens: Any) -> None:
    opens(Played(CloudError("Throttled.")))
    sensor = a_sensor(deferrable=False, poke_interval=0.01, timeout=0.2)
    began = datetime.now(UTC)
    with pytest.raises(PoolNotReleased, match=r"Pool train is not released: Throttled\. Still there: i-1") as ended:
        sensor.execute(context_of(sensor))
    assert decision_on(ended.value, sensor) is not RetryAction.FAIL
    assert decision_on(PoolSpecError("No."), sensor) is RetryAction.FAIL
    assert datetime.now(UTC) - began > timedelta(seconds=0.2)


@of_its_type
def test_a_pool_that_cannot_be_reached_is_an_error_after_five_minutes_and_no_other_try(
    opens: Any, clock: Any, error: GpuError
) -> None:
    opens(Played(*[error] * 1000))
    sensor = a_sensor(deferrable=False, poke_interval=0.0)
    with pytest.raises(PoolNotReleased) as ended:
        sensor.execute(context_of(sensor))
    assert timedelta(minutes=5) <= clock() < timedelta(minutes=6)
    assert str(ended.value).startswith(f"Pool train is not released: {error.what} ")
    assert str(ended.value).endswith(f"{error.fix} Then clear this task.")
    assert decision_on(ended.value, sensor) is RetryAction.FAIL


@of_its_type
def test_the_trigger_tolerates_it_no_longer(
    opens: Any, monkeypatch: pytest.MonkeyPatch, clock: Any, error: GpuError
) -> None:
    opens(Played(*[error] * 1000))
    sensor = a_sensor()
    with pytest.raises(TaskDeferred) as deferral:
        sensor.execute(context_of(sensor))
    monkeypatch.setattr(pool_loop._ClusterTime, "now", lambda self: SystemClock().now())
    monkeypatch.setattr(pool_loop, "pause_after", lambda waited, every: 0.0)
    began = clock()
    event = asyncio.run(first_event(copy_of(deferral.value.trigger)))
    assert event["error"]["type"] == type(error).__name__
    assert timedelta(minutes=4) < clock() - began < timedelta(minutes=7)


def test_what_has_worked_is_tolerated_for_the_whole_wait(opens: Any, clock: Any) -> None:
    opens(played := Played(with_a_machine(), *[CredentialsError("Who?")] * 60, snapshot()))
    sensor = a_sensor(deferrable=False, poke_interval=0.0)
    sensor._reconciler = played  # type: ignore[assignment] - what is open stays open
    assert sensor.execute(context_of(sensor))["nodes"] == 0
    assert clock() > timedelta(minutes=10)


@pytest.mark.parametrize("error", [*NO_ACCESS, PermissionDenied("No."), ClusterUnreachable("Away.")])
@pytest.mark.parametrize("deferrable", [True, False])
def test_a_run_that_has_begun_nothing_has_nothing_to_release(
    opens: Any, monkeypatch: pytest.MonkeyPatch, error: GpuError, deferrable: bool
) -> None:
    opens(played := Played(*[error] * 1000))
    monkeypatch.setattr("airflow_gpu_provider.tasks.nothing_begun.tasks_that_began_nothing", lambda *_: ["gpus.ensure"])
    sensor = a_sensor(deferrable=deferrable)
    lines: list[str] = []
    sensor._report = lines.append  # type: ignore[method-assign]
    found = sensor.execute(context_of(sensor))
    empty = {"pool": "train", "nodes": 0, "desired": 0, "kept": [], "seconds": 0.0}
    assert found == {**empty, "nothing_begun": True}
    assert lines == [
        "This run has nothing of pool train to release: no try of gpus.ensure got so far as to write anything, and no"
        f" training of the block has started. {type(error).__name__}: {error}"
    ]
    assert len(played.calls) <= 1
    opens(Played(snapshot()))  # a pool that is reached is read, whatever Ensure has left
    assert "nothing_begun" not in a_sensor().execute(context_of(sensor))


def test_an_error_of_the_trigger_says_what_still_runs(opens: Any) -> None:
    opens(Played(snapshot()))
    sensor = a_sensor()
    event = {"status": "error", "error": PermissionDenied("AWS refused autoscaling:X.", "Allow it.").to_record()}
    with pytest.raises(PoolNotReleased, match=r"AWS refused autoscaling:X\. Still there: i-1.*Allow it\."):
        sensor.resume(context := context_of(sensor), event)
    assert context["ti"].xcoms["usage"] == {**BILL.to_json(), "block": None}


def test_the_error_names_machines_price_and_the_switch_s_time() -> None:
    opened: Any = Played
    error = not_released(CloudError("AWS did not answer.", "Try again."), key("run"), opened, on_bill=print)
    said = str(error)
    for words in (
        "Pool train is not released: AWS did not answer. Still there: i-1 (g6.xlarge on-demand in us-west-2a)",
        f"in group {A} of size 1.",
        "Cost of the run's nodes so far: 1.23 EUR.",
        f"The switch of {A} ends them at 2026-03-01 08:15Z.",
        "Try again.",
    ):
        assert words in said
    assert error.details["machines"] == {A: ["i-1"]}
    assert error.details["cause"] == "CloudError"
    assert error.retryable


def test_a_pool_that_cannot_be_read_does_not_replace_the_error() -> None:
    def away() -> Any:
        raise ClusterUnreachable("The server is away.")

    error = not_released(PermissionDenied("Refused."), key("run"), away, on_bill=print)
    assert "Refused. The remaining machines could not be read (The server is away.)" in str(error)


def refuses(*_: Any) -> Any:
    raise PermissionDenied("The cluster refused to list leases.")


def without_the_cluster(*machines: Any, price: float | None = 2.0) -> Any:
    """A pool of which only the cloud can be read, with one more machine asked for in another zone."""
    played = Played()
    played.pool = pool(price_per_hour={"ON_DEMAND": price} if price else None, currency="EUR")
    shown = groups(played.pool, *machines, **{B.replace("-", "_"): {"desired": 1}})
    played.platform = SimpleNamespace(observe=lambda: shown)
    played.snapshot = refuses  # type: ignore[method-assign]
    played.ledger = SimpleNamespace(bill=refuses)
    return played


def launched(hours_ago: float) -> datetime:
    return NOW - timedelta(hours=hours_ago)


@pytest.fixture
def time_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SystemClock, "now", lambda _: NOW)


@pytest.mark.usefixtures("time_stands_still")
def test_where_the_cluster_cannot_be_read_the_error_tells_what_the_cloud_shows() -> None:
    played = without_the_cluster(machine(1, launched_at=launched(hours_ago=3)))
    error = not_released(
        PermissionDenied("The cluster refused to delete leases.", "Allow it."),
        key("run"),
        lambda: played,
        on_bill=print,
    )
    said = str(error)
    for words in (
        "Pool train is not released: The cluster refused to delete leases. This is what the cloud shows; who wants the"
        " machines could not be read (The cluster refused to list leases). Still there: i-1 (",
        f"2.00 EUR an hour each) in group {A} of size 1; no machine yet (",
        f"in group {B} of size 1.",
        "Cost of these machines since their launch: 6.00 EUR.",
        f"The switch of {A} ends them at 2026-03-01 08:15Z.",
        "Allow it.",
    ):
        assert words in said
    assert error.details["machines"] == {A: ["i-1"]}


@pytest.mark.usefixtures("time_stands_still")
@pytest.mark.parametrize(("price", "cost"), [(2.0, "at least 6.00 EUR"), (None, "unknown")])
def test_a_machine_whose_launch_the_cloud_does_not_tell_makes_the_cost_a_least_one(
    price: float | None, cost: str
) -> None:
    played = without_the_cluster(machine(1, launched_at=launched(3)), machine(2, launched_at=None), price=price)
    said = str(not_released(PermissionDenied("Refused."), key("run"), lambda: played, on_bill=print))
    assert f"Cost of these machines since their launch: {cost}." in said


def test_where_the_cloud_shows_nothing_the_error_says_so() -> None:
    played = without_the_cluster()
    played.platform = SimpleNamespace(observe=lambda: groups(played.pool))
    assert "No machines are left." in str(
        not_released(PermissionDenied("No."), key("run"), lambda: played, on_bill=print)
    )


def test_the_error_says_where_the_cost_may_have_been_more() -> None:
    played = Played()
    why = "when machines were launched and terminated could not be read (AWS refused ec2:DescribeInstances.)"
    played.ledger = SimpleNamespace(bill=lambda *_, **__: replace(BILL, at_least=why))
    opened: Any = lambda: played  # noqa: E731
    said = str(not_released(CloudError("AWS did not answer."), key("run"), opened, on_bill=print))
    assert f"Cost of the run's nodes so far: at least 1.23 EUR; the true cost may be higher: {why}." in said


def test_the_log_says_until_when_a_refusal_is_borne(opens: Any) -> None:
    opens(Played(PermissionDenied("No.", "Allow it."), snapshot()))
    sensor = a_sensor(deferrable=False, poke_interval=0.01)
    lines: list[str] = []
    sensor._report = lines.append  # type: ignore[method-assign]
    sensor.execute(context_of(sensor))
    until = datetime.now(UTC) + timedelta(minutes=5)
    assert any(
        f"PermissionDenied: No. Allow it. Trying again until {at:%Y-%m-%d %H:%M}" in line
        for line in lines
        for at in (until, until - timedelta(minutes=1))
    ), lines


@pytest.mark.parametrize(
    ("nodes", "desired", "kept", "said"),
    [
        (0, 0, [], "Pool train is released after 4.2 s: no node is left."),
        (
            1,
            1,
            ["kept for prio_mid/manual: 1 node until 2026-01-01 02:00Z"],
            "This run's demand for pool train is withdrawn after 4.2 s; 1 node stays: kept for prio_mid/manual: 1 node"
            " until 2026-01-01 02:00Z.",
        ),
        (
            0,
            2,
            ["kept for b/manual: 2 nodes until 2026-01-01 02:00Z"],
            "This run's demand for pool train is withdrawn after 4.2 s; 0 nodes (desired size 2) stay: kept for"
            " b/manual: 2 nodes until 2026-01-01 02:00Z.",
        ),
        (3, 3, [], "Pool train is released after 4.2 s; 3 nodes stay, which this package does not remove."),
    ],
)
def test_what_is_left_is_said_with_for_whom(nodes: int, desired: int, kept: list[str], said: str) -> None:
    result = {"pool": "train", "nodes": nodes, "desired": desired, "kept": kept, "seconds": 4.2}
    assert _released(result) == said
