"""Which of a gang's pods is asked what its GPUs do; what is asked and answered is played."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_gpu_provider.cluster.model.pod_state import PodState
from airflow_gpu_provider.cluster.model.pool_pod import HangNote
from airflow_gpu_provider.errors import GangHung, GpuIdle
from airflow_gpu_provider.scaling.wait.records import Progress
from airflow_gpu_provider.training.wait.attempt_wait import Silence
from airflow_gpu_provider.training.wait.gang_wait import GangWait
from airflow_gpu_provider.training.wait.gpu_use import GpuWatching
from airflow_gpu_provider.training.watch.gpu_sampler import GpuSampler
from tests.unit.scaling.pools import NOW


class Api:
    """Answers for each pod with its own line."""

    def __init__(self, answers: dict[str, bytes]) -> None:
        self._answers = answers
        self.notes: list[HangNote | None] = []
        self.asked: Counter[str] = Counter()

    async def output(self, path: str, **_: Any) -> bytes:
        await asyncio.sleep(0)
        pod = path.rpartition("/")[2]
        self.asked[pod] += 1
        return self._answers[pod]

    async def now(self) -> datetime:
        return NOW

    async def annotate(self, path: str, *, annotations: dict[str, str], **_: Any) -> bool:
        assert path.endswith("/train-0")
        self.notes.append(HangNote.of(annotations))
        return True


def sampler_of(api: Api, gpus: GpuWatching, hang_seconds: float | None = None) -> GpuSampler:
    wait = GangWait(
        namespace="default",
        name="train",
        uid="1",
        nodes=2,
        base_container="base",
        started=NOW,
        schedule_seconds=60,
        start_seconds=60,
        deadline=NOW,
        gpus=gpus,
        hang_seconds=hang_seconds,
    )
    return GpuSampler(cast(Any, api), wait, report=lambda _: None, warn=lambda _: None)


def shown(sampler: GpuSampler, rank: int, *, gpus: int = 1, status: str = "running") -> None:
    base = SimpleNamespace(name="base", status=status, started_at=NOW, finished_at=None)
    pod = SimpleNamespace(name=f"train-{rank}", uid=str(rank), base=base, created_at=NOW, scheduled_at=None)
    container = {"name": "base", "resources": {"limits": {"nvidia.com/gpu": gpus} if gpus else {}}}
    sampler.follow(cast(PodState, pod), {"metadata": {}, "spec": {"containers": [container]}}, rank)


async def until(is_so: Any) -> None:
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110 - a count tells nobody
            await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_gpu_provider.training.watch.gpu_sampler.SAMPLE_EVERY", 0.01)


async def test_ranks_are_asked_in_turn() -> None:
    api = Api({"train-0": b"80, 1, 1, 9\n", "train-1": b"20, 1, 1, 9\n"})
    async with sampler_of(api, GpuWatching()) as sampler:
        for rank in (0, 1, 2):
            shown(sampler, rank, gpus=int(rank < 2))
        await until(lambda: api.asked.total() >= 20)
        use = sampler.use
    assert set(api.asked) == {"train-0", "train-1"}, "a pod without GPUs has nothing to say"
    assert abs(api.asked["train-0"] - api.asked["train-1"]) <= 1
    assert use.mean == pytest.approx(50, abs=4)


async def test_rank_that_has_ended_is_not_asked() -> None:
    api = Api({"train-0": b"80, 1, 1, 9\n", "train-1": b"20, 1, 1, 9\n"})
    async with sampler_of(api, GpuWatching()) as sampler:
        shown(sampler, 0)
        shown(sampler, 1)
        await until(lambda: api.asked["train-0"])
        shown(sampler, 0, status="terminated")
        asked = api.asked["train-0"]
        await until(lambda: api.asked["train-1"] >= 5)
        assert api.asked["train-0"] <= asked + 1


@pytest.mark.parametrize(
    ("started", "second", "hangs"),
    [(2, b"100, 1, 60, 400\n", True), (2, b"100, 1, 380, 400\n", False), (1, b"100, 1, 60, 400\n", False)],
    ids=["all spin", "one of them computes", "one has not started"],
)
async def test_a_gang_hangs_where_the_gpus_of_all_its_ranks_spin(started: int, second: bytes, hangs: bool) -> None:
    api = Api({"train-0": b"100, 1, 60, 400\n", "train-1": second})
    silence = Silence(lasts=timedelta(), last_lines={1: "waits", 0: "waits too"})

    async def watch() -> Progress:
        await until(lambda: api.asked.total() >= 60)
        return Progress(done=True)

    async with sampler_of(api, GpuWatching(), hang_seconds=0.1) as sampler:
        for rank in range(started):
            shown(sampler, rank)
        error = (await sampler.beside(watch(), lambda: silence)).error
    assert (type(error) is GangHung) == hangs
    if error is not None:
        assert error.details["last_lines"] == {"0": "waits too", "1": "waits"}
        assert {gpu["rank"] for gpu in error.details["gpus"]} == {0, 1}


async def test_the_first_rank_tells_that_all_may_hang() -> None:
    api = Api({"train-0": b"100, 1, 60, 400\n", "train-1": b"100, 1, 70, 400\n"})
    async with sampler_of(api, GpuWatching(warn_seconds=0.1)) as sampler:
        for rank in (1, 0):
            shown(sampler, rank)
        await until(lambda: api.notes)
        asked = api.asked.total()
        await until(lambda: api.asked.total() > asked + 10)
    (note,) = api.notes
    assert note is not None
    assert (note.pods, note.shown_by) == (2, "busy at a draw near that of idle ones (60 to 70 W of 400 W each)")


@pytest.mark.parametrize(("second", "is_idle"), [(b"0, 1, 1, 9\n", True), (b"7, 1, 1, 9\n", False)])
async def test_a_gang_is_idle_where_all_its_ranks_are(second: bytes, is_idle: bool) -> None:
    api = Api({"train-0": b"0, 1, 1, 9\n", "train-1": second})
    over = Progress(done=True)

    async def watch() -> Progress:
        await until(lambda: api.asked.total() >= 60)
        return over

    async with sampler_of(api, GpuWatching(end_seconds=0.1)) as sampler:
        shown(sampler, 0)
        shown(sampler, 1)
        progress = await sampler.beside(watch())
    assert (type(progress.error) is GpuIdle) == is_idle
    assert not is_idle or str(progress.error).startswith("The GPUs of Job train have been idle for")
