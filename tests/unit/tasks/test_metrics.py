"""What tasks measure, as a StatsD server on loopback receives it from Airflow's own client."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.sdk import Context
from airflow.sdk._shared.observability.metrics import stats
from airflow.sdk.exceptions import TaskDeferred
from airflow.sdk.observability.metrics.statsd_logger import get_statsd_logger

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.errors import OutOfStock
from airflow_gpu_provider.tasks.pool_operator import PoolOperator
from airflow_gpu_provider.tasks.telemetry import gauge_use, time_phases

POOL = EksGpuPool(name="a10g", cluster_name="ml", region="us-west-2", instance_types=("g6.xlarge",), max_nodes=2)
TAGS = "dag_id=adhoc_airflow,operator=Training,pool=a10g"


class Training(PoolOperator):
    raised: BaseException | None = None

    def execute(self, context: Context) -> None:
        if self.raised is not None:
            raise self.raised


class TrainingOfTheirOwn(Training):
    def execute(self, context: Context) -> None:
        super().execute(context)


def training(cls: type[Training] = Training, raised: BaseException | None = None) -> Training:
    made = cls(task_id="train")
    made.gpu_pool, made.raised = POOL, raised  # type: ignore[attr-defined]
    return made


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[str]]]:
    """What has come since it was asked for the last time, sorted, with the tags of one metric sorted, too."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.setblocking(False)
        host, port = server.getsockname()
        settings = {"host": host, "port": str(port), "prefix": "", "influxdb_enabled": "True"}
        for name, value in settings.items():
            monkeypatch.setenv(f"AIRFLOW__METRICS__STATSD_{name.upper()}", value)
        monkeypatch.setattr(stats, "_backend", get_statsd_logger())

        def messages() -> Iterator[str]:
            while True:
                try:
                    text = server.recv(4096).decode()
                except BlockingIOError:
                    return
                name, _, value = text.rpartition(":")
                stat, *tags = name.split(",")
                yield f"{','.join([stat, *sorted(tags)])}:{value}"

        yield lambda: sorted(messages())


def run(operator: Training) -> None:
    ti = SimpleNamespace(task_id="train", map_index=-1, xcom_push=lambda **_: None)
    operator.execute(cast("Context", {"ti": ti}))


@pytest.mark.parametrize("cls", [Training, TrainingOfTheirOwn])
def test_an_end_is_counted_once(received: Callable[[], list[str]], cls: type[Training]) -> None:
    run(training(cls))
    messages = received()
    assert [each.partition(",")[0] for each in messages] == ["gpu_provider.outcome", "gpu_provider.outcome.success"]
    assert all(each.endswith(",outcome=success,pool=a10g:1|c") for each in messages)


def test_an_error_is_counted_by_its_type(received: Callable[[], list[str]]) -> None:
    with pytest.raises(OutOfStock):
        run(training(raised=OutOfStock("No capacity.")))
    tags = "dag_id=adhoc_airflow,operator=Training,outcome=OutOfStock,pool=a10g"
    assert received() == [f"gpu_provider.outcome,{tags}:1|c", f"gpu_provider.outcome.OutOfStock,{tags}:1|c"]


def test_plain_statsd_has_the_outcome_in_a_name(
    received: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED", "False")
    monkeypatch.setattr(stats, "_backend", get_statsd_logger())
    with pytest.raises(OutOfStock):
        run(training(raised=OutOfStock("No capacity.")))
    assert received() == ["gpu_provider.outcome.OutOfStock:1|c", "gpu_provider.outcome:1|c"]


def test_a_deferral_is_no_end(received: Callable[[], list[str]]) -> None:
    with pytest.raises(TaskDeferred):
        run(training(raised=TaskDeferred(trigger=cast("Any", None), method_name="resume")))
    assert received() == []


def test_phases_and_preemptions(received: Callable[[], list[str]]) -> None:
    phases = [
        {"phase": "image pull", "seconds": 2.5, "attempt": 1},
        {"phase": "ran", "seconds": 9.0, "attempt": 3, "end": "asked for another node"},
        {"phase": "ran", "seconds": 60.0, "attempt": 4},
    ]
    time_phases(training(), phases)
    assert received() == [
        f"gpu_provider.phase.image_pull,{TAGS}:2500.000000|ms",
        f"gpu_provider.phase.ran,{TAGS}:60000.000000|ms",
        f"gpu_provider.phase.ran,{TAGS}:9000.000000|ms",
        f"gpu_provider.preemptions,{TAGS}:2|c",
    ]


def test_use_that_is_not_reported_is_not_zero(received: Callable[[], list[str]]) -> None:
    gauge_use(training(), {"mean": None})
    assert received() == []
    gauge_use(training(), {"mean": 38.2})
    assert received() == [f"gpu_provider.gpu_utilization,{TAGS}:38.2|g"]
