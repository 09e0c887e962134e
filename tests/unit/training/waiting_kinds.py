"""The three kinds of wait, each on the fake API server, in a cluster whose time is virtual."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from airflow_gpu_provider.cluster.api import informer
from airflow_gpu_provider.cluster.api.access import ClusterAccess
from airflow_gpu_provider.cluster.api.async_api import AsyncApi
from airflow_gpu_provider.cluster.model.pod_state import ATTEMPT_ANNOTATION, OWNER_ANNOTATION
from airflow_gpu_provider.cluster.model.pool_pod import GANG_LABEL, JOB_LABEL, WORKLOAD_LABEL
from airflow_gpu_provider.errors import ClusterUnreachable
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from airflow_gpu_provider.scaling.wait.records import Narrator, Progress
from airflow_gpu_provider.training.wait.gang_wait import GangWait
from airflow_gpu_provider.training.wait.pod_wait import PodWait
from airflow_gpu_provider.training.wait.workload_wait import WorkloadWait
from airflow_gpu_provider.training.watch import view
from airflow_gpu_provider.training.watch import watch_loop as watch
from airflow_gpu_provider.training.watch.watch_loop import read_wait, run_kind_of
from tests.fakes.api_server import ApiServer
from tests.fakes.clients import FakeAsyncApi
from tests.fakes.clock import START, VirtualClock
from tests.unit.training.test_pod_placement import a_pool

POOL = replace(a_pool(), max_nodes=2)
JOB = "apis/batch/v1/namespaces/ml/jobs/train"
INDEX = "batch.kubernetes.io/job-completion-index"
DONE_WITHIN = 60.0  # seconds, on a machine under any load
A_LOOK = 3.0  # seconds of the cluster's time from one look to the next; more than a gang's log pauses
FULL = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."

Raw = dict[str, Any]


def stamp(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"


@dataclass(frozen=True, eq=False, kw_only=True)
class Kind:
    """What is waited for: its object, and its pods, which are named after it; a pod is its own object.

    Attributes:
        labels: By the paths of the object and the pods: the label by which they are watched, and its value.
        details: What an error's details name it by.
        runs: What the log says when all pods run.
        queues: What the log says when it waits for its turn in a full pool.
    """

    wait: Any
    labels: dict[str, tuple[str, str]]
    details: dict[str, str]
    runs: str
    queues: str

    @property
    def object(self) -> str:
        return next(iter(self.labels))

    @property
    def pods(self) -> list[str]:
        return [path for path in self.labels if "/pods/" in path]

    def __str__(self) -> str:
        return str(self.wait.run_kind)


TIMES: Raw = {
    "namespace": "ml",
    "name": "train",
    "uid": "u",
    "started": START,
    "schedule_seconds": 600.0,
    "start_seconds": 600.0,
    "deadline": START + timedelta(hours=5),
}


def named(suffix: str) -> str:
    return f"api/v1/namespaces/ml/pods/train{suffix}"


POD = Kind(
    wait=PodWait(base_container="base", **TIMES),
    labels={named(""): (POOL_LABEL, POOL.name)},
    details={"pod": "train"},
    runs="container base started on node n0",
    queues="the pool is full",
)
GANG = Kind(
    wait=GangWait(nodes=2, base_container="base", **TIMES),
    labels={JOB: (GANG_LABEL, "2"), named("-0-a"): (GANG_LABEL, "2"), named("-1-b"): (GANG_LABEL, "2")},
    details={"job": "train"},
    runs="2 of 2 ranks run",
    queues="the gang of 2 waits to be admitted",
)
WORKLOAD = Kind(
    wait=WorkloadWait(kind="Job", task="t1", try_id="y1", attempt=1, **TIMES),
    labels={JOB: (POOL_LABEL, POOL.name), named("-a"): (WORKLOAD_LABEL, "t1"), named("-b"): (WORKLOAD_LABEL, "t1")},
    details={"workload": "train"},
    runs="2 of 2 pods run",
    queues="the pool is full",
)


class Night:
    """One kind's object and pods in a cluster whose nodes are all up, watched as a task's trigger does."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.clock = VirtualClock()
        self.server = ApiServer(now=self.clock.now)
        self.lines: list[str] = []
        self.key = ""  # what the Airflow connection holds
        self.access = self._by_key
        self._looked = asyncio.Event()
        self._watch: asyncio.Task[Progress] | None = None
        for number in range(2):
            meta = {"name": f"n{number}", "labels": {POOL_LABEL: POOL.name}}
            ready = {"type": "Ready", "status": "True", "lastTransitionTime": stamp(START)}
            status = {"allocatable": {"nvidia.com/gpu": "1"}, "conditions": [ready]}
            self.server.put(f"api/v1/nodes/n{number}", {"metadata": meta, "status": status})

    # -- what the cluster does -------------------------------------------------------------------------------

    def start(self) -> None:
        """Have all pods run, one on each node."""
        self._put_job(suspended=False)
        for number, path in enumerate(self.kind.pods):
            scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(self.clock.now())}
            state = {"running": {"startedAt": stamp(self.clock.now())}}
            status = {"phase": "Running", "conditions": [scheduled], "containerStatuses": [shown(state)]}
            self._put_pod(path, number, {"nodeName": f"n{number}"}, status)

    def queue(self) -> None:
        """Have other pods use all nodes. A gang gets no pods before it is admitted."""
        self._put_job(suspended=self.kind is GANG)
        said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": FULL}
        for number, path in enumerate(() if self.kind is GANG else self.kind.pods):
            self._put_pod(path, number, {}, {"phase": "Pending", "conditions": [said]})

    def end(self) -> None:
        """Have all pods succeed, and with them the Job."""
        for path in self.kind.pods:
            times = {"startedAt": stamp(START), "finishedAt": stamp(self.clock.now())}
            status = {"phase": "Succeeded", "containerStatuses": [shown({"terminated": {"exitCode": 0, **times}})]}
            self.server.patch(path, {"status": status})
        self._end_job("Complete")

    def lose_node(self) -> None:
        """Have the machine of the first pod go."""
        self.server.remove("api/v1/nodes/n0")
        if self.kind is WORKLOAD:  # its controller decides what that means, once Kubernetes has deleted the pod
            self.server.remove(self.kind.pods[0])
            self._end_job("Failed")

    def take_label(self, path: str) -> None:
        label, _ = self.kind.labels.get(path, (POOL_LABEL, ""))
        self.server.patch(path, {"metadata": {"labels": {label: None}}})

    def delete(self) -> None:
        for path in self.kind.labels:
            self.server.remove(path)

    def _put_job(self, *, suspended: bool) -> None:
        if self.kind is not POD:
            label, value = self.kind.labels[JOB]
            meta = {"name": "train", "namespace": "ml", "uid": "u", "labels": {label: value}}
            self.server.put(JOB, {"metadata": meta, "spec": {"suspend": suspended}})

    def _end_job(self, how: str) -> None:
        if self.kind is not POD:
            condition = {"type": how, "status": "True", "lastTransitionTime": stamp(self.clock.now())}
            self.server.patch(JOB, {"status": {"conditions": [condition]}})

    def _put_pod(self, path: str, number: int, spec: Raw, status: Raw) -> None:
        label, value = self.kind.labels[path]
        meta = {
            "name": path.rpartition("/")[2],
            "namespace": "ml",
            "uid": "u" if self.kind is POD else f"u{number}",
            "labels": {label: value, JOB_LABEL: "train"},
            "annotations": {OWNER_ANNOTATION: "y1", ATTEMPT_ANNOTATION: "1", INDEX: str(number)},
            "ownerReferences": [{"kind": "Job", "uid": "u"}],
        }
        self.server.put(path, {"metadata": meta, "spec": {"containers": [{"name": "base"}], **spec}, "status": status})

    # -- what the task sees ----------------------------------------------------------------------------------

    def watch(self) -> None:
        """Begin to wait with what a trigger's record holds, as after a restart of the triggerer too."""
        record = json.loads(json.dumps(self.kind.wait.to_record()))
        wait = read_wait(self.kind.wait.run_kind, record)
        narrator = Narrator(self.lines.append, started=START)
        self._watch = asyncio.create_task(
            watch.watch(run_kind_of(wait), POOL, owner="o", narrator=narrator, open_access=nowhere)
        )

    async def stop(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            with suppress(asyncio.CancelledError):
                await self._watch

    def now(self) -> datetime:
        self._looked.set()
        return self.clock.now()

    def _by_key(self) -> ClusterAccess:
        key = self.key
        return ClusterAccess(server="https://fake", token=lambda: key, again=self._by_key)

    async def says(self, text: str) -> None:
        while not any(text in line for line in self.lines):
            await self._looks_again()

    async def goes_on(self) -> None:
        """Hold that nothing ends the wait within minutes."""
        for _ in range(50):
            await self._looks_again()

    async def over(self) -> Progress:
        assert self._watch is not None
        while not self._watch.done():
            await self._another_look()
        return await self._watch

    async def _looks_again(self) -> None:
        await self._another_look()
        assert self._watch is not None
        assert not self._watch.done(), self._watch

    async def _another_look(self) -> None:
        """Have time pass, and the task look once more; time passes with its looks only."""
        assert self._watch is not None
        self.clock.sleep(A_LOOK)
        for _ in range(2):
            self._looked.clear()
            looked = asyncio.create_task(self._looked.wait())
            await asyncio.wait({looked, self._watch}, return_when=asyncio.FIRST_COMPLETED)
            looked.cancel()


class Api(FakeAsyncApi):
    """It shows what the Airflow connection holds; it goes by the cluster's time."""

    def __init__(self, night: Night) -> None:
        super().__init__(night.server, night.access())
        self._night = night

    async def now(self) -> datetime:
        return self._night.now()


def shown(state: Raw) -> Raw:
    return {"name": "base", "image": "i", "state": state}


def nowhere() -> ClusterAccess:
    raise ClusterUnreachable("Nobody is to be asked.", "")


@contextmanager
def watching(new_api: Callable[[], AsyncApi]) -> Iterator[pytest.MonkeyPatch]:
    """Have every watch be of the connection that `new_api` returns, and every pause a moment."""

    async def opened(_: Any) -> AsyncApi:
        return new_api()

    async def leave(*_: Any) -> None:
        """Nobody reconciles the pool."""

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(informer, "_open", opened)
        patched.setattr(informer, "_pause", lambda *_, **__: 0.001)
        patched.setattr(view, "LONGEST", 0.002)
        patched.setattr(view, "AFTER_FAILURE", timedelta(seconds=0.002))
        patched.setattr(watch.pool_updates, "keep", lambda *_, **__: None)
        patched.setattr(watch.pool_updates, "leave", leave)
        yield patched


def run(kind: Kind, what: Callable[[Night], Awaitable[None]]) -> None:
    """Play one night."""

    async def go() -> None:
        night = Night(kind)

        with watching(lambda: Api(night)):
            try:
                async with asyncio.timeout(DONE_WITHIN):
                    await what(night)
            finally:
                await night.stop()

    asyncio.run(go())
