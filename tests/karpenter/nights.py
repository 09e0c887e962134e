"""A run's tasks with Karpenter, several at a time if need be: what they return, and what they tell."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, MutableMapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from airflow_gpu_provider import EnsureGpuPoolOperator, GpuPodOperator, KubernetesGpuPool, ScaleDownSensor
from airflow_gpu_provider.cluster.api.async_api import AsyncApi
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.operators.gpu_pod import SCHEDULE_TIMEOUT
from tests.sandbox.running import eventually, line_of, run

SMI = ("nvidia-smi", "-L")
FOREVER = ("sh", "-c", "trap 'exit 0' TERM; echo up; while :; do sleep 0.2; done")


class Told:
    """The lines that operators have logged so far, as a task's log shows them."""

    def __init__(self, entries: list[MutableMapping[str, Any]]) -> None:
        self._entries = entries

    @property
    def lines(self) -> list[str]:
        return [line_of(entry) for entry in list(self._entries)]

    def matching(self, pattern: str) -> list[str]:
        return [line for line in self.lines if re.search(pattern, line)]

    def until(self, pattern: str, *, seconds: float = 90.0) -> str:
        """Wait for a line that has this; return it."""
        try:
            return str(eventually(lambda: self.matching(pattern), seconds=seconds)[0])
        except AssertionError:
            raise AssertionError(f"nothing told of {pattern} in {seconds} s:\n" + "\n".join(self.lines)) from None


@contextmanager
def told() -> Iterator[Told]:
    with capture_logs() as entries:
        yield Told(entries)


class Night:
    """The tasks of one run of a DAG with one block, by default the pool's own; they run in threads of their own."""

    def __init__(self, pool: KubernetesGpuPool, run_id: str = "") -> None:
        self.pool = pool
        self.run_id = run_id or pool.name
        self._threads = ThreadPoolExecutor(4, thread_name_prefix=self.run_id)

    def ensure(self, **arguments: Any) -> Any:
        return self._run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=self.pool, **arguments))

    def begin_train(self, *cmds: str, **arguments: Any) -> Future[Any]:
        """Begin the training, by default of one look at its GPU."""
        usual: dict[str, Any] = {"task_id": "train", "image": "busybox:1.36", "cmds": [*(cmds or SMI)], "gpus": 1}
        operator = GpuPodOperator(gpu_pool=self.pool, **(usual | arguments))
        return self._threads.submit(self._run, operator)

    def train(self, *cmds: str, **arguments: Any) -> Any:
        return self.begin_train(*cmds, **arguments).result(240)

    def begin_scale_down(self, **arguments: Any) -> Future[Any]:
        usual: dict[str, Any] = {"task_id": "scale_down", "timeout": timedelta(minutes=3)}
        return self._threads.submit(self._run, ScaleDownSensor(gpu_pool=self.pool, **(usual | arguments)))

    def scale_down(self, **arguments: Any) -> Any:
        return self.begin_scale_down(**arguments).result(240)

    def _run(self, operator: Any) -> Any:
        return run(operator, run_id=self.run_id)


def late(training: Future[Any], kind: type[GpuError], match: str) -> GpuError:
    """Let the training's time to get a node be over at once, and return how it fails."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AsyncApi, "now", _after_schedule_timeout)
        return failure(training, kind, match)


_now = AsyncApi.now


async def _after_schedule_timeout(api: AsyncApi) -> datetime:
    return await _now(api) + SCHEDULE_TIMEOUT + timedelta(minutes=1)  # waits go by the API server's time


def failure(task: Future[Any], kind: type[GpuError], match: str, *, seconds: float = 240.0) -> GpuError:
    """Wait until the task has failed so; return the error."""
    with pytest.raises(kind, match=match) as failed:
        task.result(seconds)
    return failed.value


def side_by_side(calls: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    """Do all at the same time; return what each returned, or the GpuError that it raised."""

    def done(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except GpuError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as threads:
        futures = {name: threads.submit(done, call) for name, call in calls.items()}
        return {name: future.result() for name, future in futures.items()}
