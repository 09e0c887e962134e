"""When the sampler warns, ends a wait, and gives a container up; what is asked and answered is played."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest

from airflow_gpu_provider.cluster.api.async_api import OutputTooLong
from airflow_gpu_provider.cluster.model.pod_state import Json, PodState
from airflow_gpu_provider.cluster.model.pool_pod import HANG, HangNote
from airflow_gpu_provider.errors import ClusterUnreachable, GpuHung, GpuIdle, PermissionDenied
from airflow_gpu_provider.scaling.wait.records import Progress
from airflow_gpu_provider.training.wait.attempt_wait import Silence
from airflow_gpu_provider.training.wait.gpu_use import LEAST_SAMPLES, QUERY, QUERY_ON_GKE, GpuWatching
from airflow_gpu_provider.training.wait.pod_wait import PodWait
from airflow_gpu_provider.training.watch.gpu_sampler import GpuSampler
from tests.unit.scaling.pools import NOW


def pod_that_is(status: str, name: str = "train") -> PodState:
    base = SimpleNamespace(name="base", status=status)
    return cast(PodState, SimpleNamespace(name=name, uid=name, base=base, scheduled_at=None))


RUNNING = pod_that_is("running")
RAW: Json = {
    "metadata": {},
    "spec": {"containers": [{"name": "base", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
}


class Api:
    """Answers each exec with the next answer, and with the last one from then on; keeps what is written on pods."""

    def __init__(self, *answers: bytes | Exception | None) -> None:
        self._answers = list(answers)
        self.commands: list[Sequence[str]] = []
        self.written: list[tuple[str, str | None]] = []
        self.refusals: list[Exception] = []

    async def now(self) -> datetime:
        return NOW

    async def annotate(self, path: str, *, uid: str, annotations: Mapping[str, str | None]) -> bool:
        if self.refusals:
            raise self.refusals.pop()
        assert path == f"api/v1/namespaces/default/pods/{uid}"
        (note,) = annotations.items()
        assert note[0] == HANG
        self.written.append((uid, note[1]))
        return True

    @property
    def asked(self) -> int:
        return len(self.commands)

    async def output(self, *_: Any, command: Sequence[str], **__: Any) -> bytes | None:
        self.commands.append(command)
        await asyncio.sleep(0)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class Sampled:
    def __init__(self, api: Api, gpus: GpuWatching | None, hang_seconds: float | None = None) -> None:
        wait = PodWait(
            namespace="default",
            name="train",
            uid="1",
            base_container="base",
            started=NOW,
            schedule_seconds=60,
            start_seconds=60,
            deadline=NOW,
            gpus=gpus,
            hang_seconds=hang_seconds,
        )
        self.api = api
        self.said: list[str] = []
        self.warned: list[str] = []
        self.sampler = GpuSampler(cast(Any, api), wait, report=self.said.append, warn=self.warned.append)

    async def until(self, is_so: Any) -> None:
        async with asyncio.timeout(60):
            while not is_so():  # noqa: ASYNC110 - a list and a count tell nobody
                await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_gpu_provider.training.watch.gpu_sampler.SAMPLE_EVERY", 0.01)
    monkeypatch.setattr("airflow_gpu_provider.training.watch.gpu_sampler._UNTIL_THE_END_SHOWS", 0.0)


async def never() -> Progress:
    await asyncio.Event().wait()
    raise AssertionError


async def test_gpus_that_do_not_compute_are_told_once_and_end_the_wait() -> None:
    seen = Sampled(Api(b"0, 1, 1, 9\n"), GpuWatching(warn_seconds=0.02, end_seconds=0.2))
    async with seen.sampler as sampler:
        sampler.follow(RUNNING, RAW)
        progress = await asyncio.wait_for(sampler.beside(never()), 60)
    assert type(progress.error) is GpuIdle
    assert len(seen.warned) == 1


SPINS = b"100, 1, 60, 400\n"
WORKS = b"100, 1, 390, 400\n"
AWAY = ClusterUnreachable("It did not answer.", "Wait.")


async def test_gpus_that_spin_end_the_wait_where_that_is_wanted() -> None:
    seen = Sampled(Api(SPINS), GpuWatching(), hang_seconds=0.2)
    silence = Silence(lasts=timedelta(), last_lines={0: "step 7"})
    async with seen.sampler as sampler:
        sampler.follow(RUNNING, RAW)
        progress = await asyncio.wait_for(sampler.beside(never(), lambda: silence), 60)
    assert type(progress.error) is GpuHung
    assert "at a draw near that of idle ones (60 W of 400 W each), as in a hang" in progress.error.what
    (gpu,) = progress.error.details["gpus"]
    assert gpu == {"rank": 0, "gpu": 0, "percent": 100, "power_w": 60, "power_limit_w": 400}
    assert seen.api.asked >= LEAST_SAMPLES


async def test_gpus_that_spin_are_warned_of_once_by_default() -> None:
    """And once more where one sample was of work in between, no more: it may come and go all night."""
    seen = Sampled(Api(*[SPINS] * 10, WORKS, *[SPINS] * 20, WORKS), GpuWatching(warn_seconds=0.05))
    async with seen.sampler as sampler:
        sampler.follow(RUNNING, RAW)
        await seen.until(lambda: seen.api.asked >= 35)
    (warning,) = seen.warned
    assert warning.endswith(": it may hang.")
    assert not seen.said


@pytest.mark.parametrize("refused", [0, 2], ids=["at once", "when the server answers"])
async def test_a_pod_is_marked_while_its_training_may_hang(refused: int) -> None:
    api = Api(*[SPINS] * 40, WORKS)
    api.refusals = [AWAY] * refused
    async with Sampled(api, GpuWatching(warn_seconds=0.05)).sampler as sampler:
        sampler.follow(RUNNING, RAW)
        async with asyncio.timeout(60):
            while len(api.written) < 2:  # noqa: ASYNC110 - a list tells nobody
                await asyncio.sleep(0.005)
    (marked, text), taken_off = api.written
    note = HangNote.of({HANG: text})
    assert note is not None
    assert (marked, note.pods, note.shown_by) == (
        "train",
        1,
        "busy at a draw near that of idle ones (60 W of 400 W each)",
    )
    assert timedelta(seconds=0.05) <= NOW - note.since < timedelta(seconds=1), "since it spins, not since it is told"
    assert taken_off == ("train", None)


async def test_a_former_triggerers_mark_stays_while_it_spins_and_goes_when_it_works() -> None:
    note = HangNote(since=NOW, pods=1, shown_by="busy").dump()
    marked = {**RAW, "metadata": {"annotations": {HANG: note}}}
    api = Api(*[SPINS] * 20, WORKS)
    async with Sampled(api, GpuWatching(warn_seconds=0.02)).sampler as sampler:
        sampler.follow(RUNNING, marked)
        async with asyncio.timeout(60):
            while not api.written:  # noqa: ASYNC110 - a list tells nobody
                await asyncio.sleep(0.005)
    assert api.written == [("train", None)]
    assert api.asked >= 20


@pytest.mark.parametrize("annotations", [{}, {HANG: "{}"}, {HANG: "gone"}, {HANG: '{"since": 3, "pods": 1}'}])
def test_a_note_that_somebody_edited_is_none(annotations: dict[str, str]) -> None:
    assert HangNote.of(annotations) is None


async def test_a_pod_that_starts_begins_the_time_of_a_hang_again() -> None:
    seen = Sampled(Api(SPINS), GpuWatching(), hang_seconds=3600)
    async with seen.sampler as sampler:
        sampler.follow(RUNNING, RAW)
        await seen.until(lambda: seen.api.asked >= 20)
        before = sampler._spinning.seconds
        sampler.follow(pod_that_is("running", "another"), RAW, 1)
        assert sampler._spinning.seconds == 0 < before


async def test_gpus_that_do_not_report_their_power_are_said_once() -> None:
    seen = Sampled(Api(b"100, 1, [N/A], [N/A]\n"), GpuWatching(), hang_seconds=0.01)
    async with seen.sampler as sampler:
        sampler.follow(RUNNING, RAW)
        await seen.until(lambda: seen.api.asked >= 10)
    assert seen.said == ["Whether pod train hangs cannot be told by its GPUs' power: they do not report it."]


async def test_wait_that_ends_by_itself_outranks_it() -> None:
    seen = Sampled(Api(b"90, 1, 1, 9\n"), GpuWatching(end_seconds=0.01))
    over = Progress(done=True)

    async def watch() -> Progress:
        await seen.until(lambda: seen.sampler.use.samples >= 5)
        return over

    async with seen.sampler as sampler:
        sampler.follow(RUNNING, RAW)
        assert await sampler.beside(watch()) is over
    assert not seen.warned


@pytest.mark.parametrize("answer", [None, b"NVIDIA-SMI has failed\n"])
async def test_container_that_says_nothing_is_asked_once(answer: bytes | None) -> None:
    """Once in all; once more where no nvidia-smi answered, in the folder in which GKE mounts it."""
    api = Api(answer)
    seen = Sampled(api, GpuWatching())
    async with seen.sampler as sampler:
        sampler.follow(RUNNING, RAW)
        await seen.until(lambda: seen.said)
        await asyncio.sleep(0.1)
        sampler.follow(RUNNING, RAW)
    assert api.commands == ([QUERY, QUERY_ON_GKE] if answer is None else [QUERY])
    assert len(seen.said) == 1


async def test_nvidia_smi_outside_path_is_asked_where_gke_mounts_it() -> None:
    """In an image without NVIDIA's variables; what has answered is asked alone from then on."""
    api = Api(None, b"5, 1, 1, 9\n")
    seen = Sampled(api, GpuWatching())
    async with seen.sampler as sampler:
        sampler.follow(RUNNING, RAW)
        await seen.until(lambda: seen.sampler.use.samples >= 2)
    assert api.commands[:3] == [QUERY, QUERY_ON_GKE, QUERY_ON_GKE]
    assert not seen.said


async def test_gpus_that_do_not_compute_end_the_wait_where_gke_mounts_it_too() -> None:
    seen = Sampled(Api(None, b"0, 1, 1, 9\n"), GpuWatching(end_seconds=0.2))
    async with seen.sampler as sampler:
        sampler.follow(RUNNING, RAW)
        progress = await asyncio.wait_for(sampler.beside(never()), 60)
    assert type(progress.error) is GpuIdle
    assert set(seen.api.commands[1:]) == {QUERY_ON_GKE}


async def test_node_that_does_not_answer_is_asked_again_and_said_once() -> None:
    seen = Sampled(Api(AWAY, AWAY, b"5, 1, 1, 9\n"), GpuWatching())
    async with seen.sampler as sampler:
        sampler.follow(RUNNING, RAW)
        await seen.until(lambda: seen.sampler.use.samples)
    assert len(seen.said) == 1


async def test_nothing_is_asked_where_nobody_wants_it() -> None:
    api = Api(b"0, 1, 1, 9\n")
    async with Sampled(api, None).sampler as sampler:
        sampler.follow(RUNNING, RAW)
        await asyncio.sleep(0.05)
    assert api.asked == 0


@pytest.mark.parametrize(("status", "is_asked_again"), [(403, False), (401, True), (404, True), (429, True)])
async def test_answers_that_end_the_asking(status: int, is_asked_again: bool) -> None:
    answer = PermissionDenied("It was not answered.", "Look.")
    answer.__cause__ = aiohttp.ClientResponseError(cast(Any, None), (), status=status)
    api = Api(answer, b"5, 1, 1, 9\n")
    seen = Sampled(api, GpuWatching())
    async with seen.sampler as sampler:
        sampler.follow(RUNNING, RAW)
        await seen.until(lambda: seen.said)
        if is_asked_again:
            await seen.until(lambda: seen.sampler.use.samples)
        else:
            await asyncio.sleep(0.1)
    assert bool(seen.sampler.use.samples) == is_asked_again


@pytest.mark.parametrize(
    "answer",
    [
        OutputTooLong("nvidia-smi in pod train wrote more than 64 KiB."),
        b'"' + b"x" * 60_000,
        b"1, " * 20_000,
        b"\x00\xff\n" * 100,
    ],
    ids=["without end", "a quote", "one line", "bytes"],
)
async def test_a_program_that_is_no_nvidia_smi_is_left_alone(answer: bytes | Exception) -> None:
    """The sampler goes on without it, and so does the wait."""
    seen = Sampled(Api(answer), GpuWatching())
    async with seen.sampler as sampler:
        sampler.follow(RUNNING, RAW)
        await seen.until(lambda: seen.said)
        await asyncio.sleep(0.1)
    assert seen.api.asked == 1
    (line,) = seen.said
    assert "cannot be sampled" in line


async def test_container_that_has_ended_meanwhile_is_no_failure() -> None:
    """Its end is heard of while its answer is on the way; the other rank goes on, and is sampled next."""

    class EndsMeanwhile(Api):
        async def output(self, path: str, **request: Any) -> bytes | None:
            said = await super().output(path, **request)
            if self.asked == 1:
                seen.sampler.follow(pod_that_is("terminated", path.rpartition("/")[2]), RAW)
            return said

    seen = Sampled(EndsMeanwhile(None, b"5, 1, 1, 9\n"), GpuWatching())
    async with seen.sampler as sampler:
        for name in ("train-0", "train-1"):
            sampler.follow(pod_that_is("running", name), RAW)
        await seen.until(lambda: seen.sampler.use.samples)
    assert not seen.said


async def test_nothing_is_asked_once_the_wait_is_over() -> None:
    """Nobody hears of the pods' ends then, and their logs may still be followed for a while."""
    seen = Sampled(Api(b"90, 1, 1, 9\n"), GpuWatching())
    async with seen.sampler as sampler:
        sampler.follow(RUNNING, RAW)
        await seen.until(lambda: seen.sampler.use.samples)
        await sampler.stop()
        asked = seen.api.asked
        sampler.follow(RUNNING, RAW)
        await asyncio.sleep(0.1)
        assert seen.api.asked == asked
