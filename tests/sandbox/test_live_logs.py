"""A deferred pod's log in its task's log: live, each line once, whoever dies; through real pods and their kubelet."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import pytest
import structlog
from airflow.sdk.exceptions import TaskDeferred
from kubernetes import client, config
from kubernetes.client import models as k8s
from structlog.contextvars import bound_contextvars, get_contextvars, merge_contextvars
from structlog.stdlib import PositionalArgumentsFormatter

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.cluster.model.pod_log import POSITIONS, LogReader, positions_from_record
from airflow_gpu_provider.operators.gpu_pod import GpuPodOperator
from airflow_gpu_provider.training.log import followed_log as pod_log
from airflow_gpu_provider.training.log import trigger_log
from airflow_gpu_provider.training.log.followed_log import REPEATED
from gpu_sandbox.sandbox import Sandbox
from sandbox.tests.node_checks.checks import UNTIL_TOLD, end, execute, log_of
from tests.sandbox.gpu_pools import eks_pool, with_nodes
from tests.sandbox.running import context_of, copy_of, eventually, first_event, resumption


@pytest.fixture(scope="module")
def env(env: None) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("airflow_gpu_provider.triggers.record.EVENT_AFTER_SECONDS", 0)
        yield


@pytest.fixture(scope="module")
def pool(gpu_sandbox: Sandbox, env: None) -> EksGpuPool:
    """A pool with one node of four GPUs."""
    return with_nodes(eks_pool(gpu_sandbox, "logs", instance_types=["g6.12xlarge"]))


@pytest.fixture
def core(pool: EksGpuPool) -> Iterator[client.CoreV1Api]:
    """The cluster, as its administrator; pods that a test left are deleted."""
    core = client.CoreV1Api(config.new_client_from_config(os.environ["KUBECONFIG"]))
    yield core
    core.delete_collection_namespaced_pod("default", grace_period_seconds=1)
    eventually(lambda: not core.list_namespaced_pod("default").items)


class TaskLogs:
    """What each task has logged: a line belongs to the task in whose context it was written, as in a triggerer."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []
        self.news = asyncio.Event()

    def add(self, line: str) -> None:
        self.lines.append((get_contextvars().get("task", ""), line))
        self.news.set()

    def of(self, task: str) -> list[str]:
        return [line for of_task, line in self.lines if of_task == task]

    def numbers(self, task: str) -> list[int]:
        """The numbers that `count` has printed."""
        return [int(line.removeprefix("[base] line ")) for line in self.of(task) if line.startswith("[base] line ")]

    async def until(self, is_so: Callable[[], Any], *, seconds: float = 280) -> None:
        async with asyncio.timeout(seconds):
            while not is_so():
                self.news.clear()
                await self.news.wait()


@pytest.fixture
def logs() -> Iterator[TaskLogs]:
    logs = TaskLogs()
    with _captured(logs):
        yield logs


@contextmanager
def _captured(logs: TaskLogs) -> Iterator[None]:
    def take(_: Any, method: str, event: Any) -> Any:
        logs.add(str(event["event"]))
        raise structlog.DropEvent

    class Take(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logs.add(record.getMessage())

    processors = structlog.get_config()["processors"]
    before, handler = list(processors), Take()
    logger = logging.getLogger("airflow_gpu_provider")
    processors[:] = [merge_contextvars, PositionalArgumentsFormatter(), take]
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        processors[:] = before
        logger.removeHandler(handler)
        logger.setLevel(level)


class Task:
    """One deferred GpuPodOperator, leg by leg."""

    def __init__(self, pool: EksGpuPool, name: str, script: str, **arguments: Any) -> None:
        self.name = name
        self.operator = GpuPodOperator(
            task_id=name, gpu_pool=pool, **({"image": "busybox:1.36", "cmds": ["sh", "-c", script]} | arguments)
        )
        self._context = context_of(self.operator)
        with bound_contextvars(task=name), pytest.raises(TaskDeferred) as deferral:
            self.operator.execute(self._context)  # type: ignore[arg-type]
        self._deferral = deferral.value

    @property
    def pod_name(self) -> str:
        return str(self._context["ti"].xcoms["pod_name"])

    @asynccontextmanager
    async def triggered(self) -> AsyncIterator[asyncio.Task[Any]]:
        """Run its trigger, from its row, until the block ends: then it is cut off."""
        with bound_contextvars(task=self.name):
            waiting = asyncio.create_task(first_event(copy_of(self._deferral.trigger)))
        try:
            yield waiting
        finally:
            if not waiting.done():
                waiting.cancel()
                with suppress(asyncio.CancelledError):
                    await waiting

    def finish(self, event: Any) -> Any:
        with bound_contextvars(task=self.name):
            return resumption(self.operator, self._deferral, self._context, event)()


def count(to: int, *, pause: float = 0.05) -> str:
    return f"i=0; while [ $i -lt {to} ]; do echo line $i; i=$((i+1)); sleep {pause}; done"


COUNTS = "i=0; until [ -e /tmp/end ]; do echo line $i; i=$((i+1)); sleep 0.05; done"
"""It counts until it is told to end."""


def annotations_of(core: client.CoreV1Api, task: Task) -> dict[str, str]:
    return core.read_namespaced_pod(task.pod_name, "default").metadata.annotations or {}


def saved_up_to(annotations: dict[str, str]) -> int:
    """When the newest line was printed that the next triggerer will not repeat, as in a LogPosition."""
    positions = positions_from_record(json.loads(annotations.get(POSITIONS, "{}")))
    return positions["base"].newest if positions else 0


def printed_up_to(core: client.CoreV1Api, task: Task) -> int:
    """When the newest line of the pod's log was printed, as in a LogPosition."""
    reader = LogReader()
    for line in log_of(core, task.pod_name, timestamps=True).splitlines():
        assert reader.take(line.encode())
    return reader.position.newest


async def test_lines_come_while_the_pod_runs_and_once(pool: EksGpuPool, core: client.CoreV1Api, logs: TaskLogs) -> None:
    task = await asyncio.to_thread(Task, pool, "train", COUNTS)
    async with task.triggered() as event:
        await logs.until(lambda: len(logs.numbers("train")) > 5)
        assert not event.done()
        await asyncio.to_thread(end, core, task.pod_name)
        await asyncio.to_thread(task.finish, await event)
    assert logs.numbers("train") == [*range(len(logs.numbers("train")))]
    assert REPEATED not in logs.of("train")


async def test_silent_pod_costs_no_write(pool: EksGpuPool, core: client.CoreV1Api, logs: TaskLogs) -> None:
    script = f"until [ -e /tmp/on ]; do sleep 0.1; done; echo line 0; {UNTIL_TOLD}"
    task = await asyncio.to_thread(Task, pool, "train", script)
    async with task.triggered() as event:
        await logs.until(lambda: any("started on node" in line for line in logs.of("train")))
        await asyncio.sleep(trigger_log.SAVE_EVERY)
        assert POSITIONS not in await asyncio.to_thread(annotations_of, core, task)
        assert await asyncio.to_thread(execute, core, task.pod_name, "touch /tmp/on") == ("", "", 0)
        await logs.until(lambda: logs.numbers("train"))
        await asyncio.to_thread(eventually, lambda: POSITIONS in annotations_of(core, task))
        await asyncio.to_thread(end, core, task.pod_name)
        await asyncio.to_thread(task.finish, await event)
    assert logs.numbers("train") == [0]


async def test_no_line_is_lost_or_doubled_over_an_api_server_restart(
    pool: EksGpuPool, core: client.CoreV1Api, logs: TaskLogs, gpu_sandbox: Sandbox
) -> None:
    task = await asyncio.to_thread(Task, pool, "train", COUNTS)
    async with task.triggered() as event:
        await logs.until(lambda: len(logs.numbers("train")) > 20)
        await asyncio.to_thread(gpu_sandbox.restart_apiserver, 1.0)
        before = len(logs.numbers("train"))
        await logs.until(lambda: len(logs.numbers("train")) > before + 20)
        assert not event.done()
        await asyncio.to_thread(end, core, task.pod_name)
        await asyncio.to_thread(task.finish, await event)
    numbers = logs.numbers("train")
    assert numbers == [*range(len(numbers))]
    assert len(numbers) > before + 20


@pytest.mark.parametrize("away", [False, True], ids=["followed", "nobody there"])
async def test_log_that_its_node_rotates(
    pool: EksGpuPool, core: client.CoreV1Api, logs: TaskLogs, *, away: bool
) -> None:
    """A follower loses nothing; what is printed and set aside while nobody follows is lost, and said to be."""
    wait = "while ! [ -e /tmp/%s ]; do sleep 0.1; done"
    # The last line passes the limit: the node may look in the middle of what is printed.
    ten_mib = "for i in $(seq 181); do echo line $i; head -c 58000 /dev/zero | tr '\\0' x; echo; done"
    script = f"echo line 0; {wait % 'on'}; {ten_mib}; {wait % 'after'}; echo line 182; {wait % 'end'}"
    task = await asyncio.to_thread(Task, pool, "train", script)

    def touch(name: str) -> None:
        assert execute(core, task.pod_name, f"touch /tmp/{name}") == ("", "", 0)

    def print_and_rotate() -> None:
        touch("on")
        eventually(lambda: log_of(core, task.pod_name, tail_lines=1) == "")

    async with task.triggered() as event:
        await logs.until(lambda: logs.numbers("train"))
        if away:
            await asyncio.to_thread(eventually, lambda: saved_up_to(annotations_of(core, task)))
        else:
            await asyncio.to_thread(print_and_rotate)
            await logs.until(lambda: 181 in logs.numbers("train"))
            await asyncio.to_thread(touch, "after")
            await logs.until(lambda: 182 in logs.numbers("train"))
            await asyncio.to_thread(touch, "end")
            await asyncio.to_thread(task.finish, await event)
    if away:
        await asyncio.to_thread(print_and_rotate)
        await asyncio.to_thread(touch, "after")
        await asyncio.to_thread(touch, "end")
        async with task.triggered() as event:
            await asyncio.to_thread(task.finish, await event)
    assert logs.numbers("train") == ([0, 182] if away else [*range(183)])
    assert (pod_log.ROTATED in logs.of("train")) == away


async def test_two_triggers_of_one_loop_keep_their_lines_apart(
    pool: EksGpuPool, core: client.CoreV1Api, logs: TaskLogs
) -> None:
    one, two = await asyncio.gather(
        *(asyncio.to_thread(Task, pool, name, f"echo I am {name}; {count(40)}") for name in ("one", "two"))
    )
    async with one.triggered() as event_one, two.triggered() as event_two:
        for task, event in ((one, event_one), (two, event_two)):
            await asyncio.to_thread(task.finish, await event)
    for name in ("one", "two"):
        assert [line for line in logs.of(name) if "I am" in line] == [f"[base] I am {name}"]
        assert logs.numbers(name) == [*range(40)]


async def test_streams_are_bounded_and_a_free_one_is_taken(
    pool: EksGpuPool, core: client.CoreV1Api, logs: TaskLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__LOG_STREAMS", "1")
    first = await asyncio.to_thread(Task, pool, "first", COUNTS)
    async with first.triggered() as event_one:
        await logs.until(lambda: logs.numbers("first"))
        second = await asyncio.to_thread(Task, pool, "second", COUNTS)
        async with second.triggered() as event_two:
            await logs.until(lambda: any("[gpu_provider] log_streams" in line for line in logs.of("second")))
            assert logs.numbers("second") == []
            await asyncio.to_thread(end, core, first.pod_name)
            await asyncio.to_thread(first.finish, await event_one)
            await logs.until(lambda: logs.numbers("second"))
            assert not event_two.done()
            await asyncio.to_thread(end, core, second.pod_name)
            await asyncio.to_thread(second.finish, await event_two)
    for name in ("first", "second"):
        assert logs.numbers(name) == [*range(len(logs.numbers(name)))]


async def test_next_triggerer_repeats_five_seconds_at_most_and_says_so(
    pool: EksGpuPool, core: client.CoreV1Api, logs: TaskLogs
) -> None:
    """What is older than that has been kept; of the lines since then, none may have been."""
    assert trigger_log.SAVE_EVERY + trigger_log._OUTLIVED < 5
    script = f"{count(100, pause=0.01)}; until [ -e /tmp/on ]; do sleep 0.1; done; {COUNTS.replace('i=0', 'i=100')}"
    task = await asyncio.to_thread(Task, pool, "train", script)
    async with task.triggered():
        await logs.until(lambda: len(logs.numbers("train")) == 100)
        printed = await asyncio.to_thread(printed_up_to, core, task)
        await asyncio.to_thread(eventually, lambda: saved_up_to(annotations_of(core, task)) == printed)
        assert await asyncio.to_thread(execute, core, task.pod_name, "touch /tmp/on") == ("", "", 0)
        await logs.until(lambda: len(logs.numbers("train")) > 130)
    before = logs.numbers("train")
    assert before == [*range(len(before))]
    async with task.triggered() as event:
        await logs.until(lambda: REPEATED in logs.of("train"))
        await asyncio.to_thread(end, core, task.pod_name)
        await asyncio.to_thread(task.finish, await event)
    after = logs.of("train")[logs.of("train").index(REPEATED) + 1 :]
    numbers = [int(line.removeprefix("[base] line ")) for line in after if line.startswith("[base] line ")]
    assert numbers == [*range(numbers[0], numbers[-1] + 1)]
    assert 100 <= numbers[0] <= len(before)
    assert logs.of("train").count(REPEATED) == 1


async def test_flood_holds_nobody_up_and_comes_whole(pool: EksGpuPool, core: client.CoreV1Api, logs: TaskLogs) -> None:
    """Many lines at once, read slower than they were printed: the loop goes on, the worker reads what is left."""
    total = 20_000
    prints = f"for i in range({total}): print('line', i)"
    script = f"import os, time\n{prints}\nwhile not os.path.exists('/tmp/end'): time.sleep(0.1)"
    task = await asyncio.to_thread(Task, pool, "train", "", image="python:3.12", cmds=["python", "-uc", script])
    lags: list[float] = []

    async def tick() -> None:
        for _ in itertools.count():
            began = time.thread_time()  # of the loop's own work: a busy machine takes time from all alike
            await asyncio.sleep(0.01)
            lags.append(time.thread_time() - began)

    ticker = asyncio.create_task(tick())
    async with task.triggered() as event:
        await logs.until(lambda: logs.numbers("train"))
        await asyncio.to_thread(end, core, task.pod_name)
        result = await event
    ticker.cancel()
    live = len(logs.numbers("train"))
    assert 0 < live < total
    await asyncio.to_thread(task.finish, result)
    assert logs.numbers("train") == [*range(total)]
    assert sorted(lags)[int(len(lags) * 0.99)] < 1


async def test_containers_that_are_asked_for(pool: EksGpuPool, core: client.CoreV1Api, logs: TaskLogs) -> None:
    def container(name: str, script: str) -> k8s.V1Container:
        return k8s.V1Container(name=name, image="busybox:1.36", command=["sh", "-c", script])

    spec = k8s.V1Pod(
        metadata=k8s.V1ObjectMeta(),
        spec=k8s.V1PodSpec(
            init_containers=[container("data", "echo fetched"), container("mute", "echo nobody asks")],
            containers=[
                k8s.V1Container(name="base"),
                container("exporter", "echo exports; printf 'no end of line'; while :; do sleep 0.1; done"),
            ],
        ),
    )
    task = await asyncio.to_thread(
        Task,
        pool,
        "train",
        "echo trains; while ! [ -e /tmp/end ]; do sleep 0.1; done",
        full_pod_spec=spec,
        container_logs=["base", "exporter"],
        init_container_logs="data",
        termination_grace_period=1,
        container_name_log_prefix_enabled=False,
    )
    wanted = {"fetched", "trains", "exports"}
    async with task.triggered() as event:
        await logs.until(lambda: wanted <= {*logs.of("train")})
        assert not event.done()
        await asyncio.to_thread(end, core, task.pod_name)
        await asyncio.to_thread(task.finish, await event)
    said = [line for line in logs.of("train") if line in wanted | {"nobody asks"}]
    assert sorted(said) == sorted(wanted)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [({"log_formatter": lambda container, text: f"{text}!"}, "line 0!"), ({"get_logs": False}, None)],
    ids=["formatter", "no logs"],
)
async def test_not_streamed(
    pool: EksGpuPool, core: client.CoreV1Api, logs: TaskLogs, arguments: dict[str, Any], line: str | None
) -> None:
    task = await asyncio.to_thread(Task, pool, "train", "echo line 0; sleep 2", **arguments)
    async with task.triggered() as event:
        result = await event
    assert not [one for one in logs.of("train") if "line 0" in one]
    await asyncio.to_thread(task.finish, result)
    assert [one for one in logs.of("train") if "line 0" in one] == ([line] if line else [])
