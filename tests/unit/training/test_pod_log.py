"""From where a trigger goes on with a pod's log: what the deferral says, and what the pod's annotation says.

And where another log begins: a container that is started again has a new one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest

from airflow_gpu_provider.cluster.api.async_api import AsyncApi
from airflow_gpu_provider.cluster.model.pod_log import POSITIONS, lines_of, shown
from airflow_gpu_provider.cluster.model.pod_state import PodState
from airflow_gpu_provider.get_provider_info import get_provider_info
from airflow_gpu_provider.training.log import followed_log
from airflow_gpu_provider.training.log.followed_log import STREAMS, PodLogs
from tests.unit.training.test_pod_wait import WAIT

EARLY, LATE = [100, 3, 100_500_000_000], [200, 7, 200_500_000_000]


METADATA: dict[str, Any] = {
    "namespace": WAIT.namespace,
    "name": WAIT.name,
    "uid": WAIT.uid,
    "creationTimestamp": "2026-01-01T00:00:00Z",
}


def seen(annotation: str | None, wanted: dict[str, Any] | None) -> tuple[PodLogs, list[str]]:
    """A pod's streams that have seen the pod, whose containers have not started; and what they said."""
    said: list[str] = []
    logs = PodLogs(cast("AsyncApi", None), WAIT, wanted, lambda level, text, *arguments: said.append(text % arguments))
    raw = {"metadata": METADATA | ({"annotations": {POSITIONS: annotation}} if annotation is not None else {})}
    logs.follow(PodState.parse(raw, WAIT.base_container), raw)
    return logs, said


@pytest.mark.parametrize(
    ("annotation", "deferral", "position", "may_repeat"),
    [
        (None, None, [0, 0, 0], False),
        ({"base": LATE}, None, LATE, True),
        ({"base": [0, 0, 0]}, None, [0, 0, 0], True),
        (None, LATE, LATE, False),
        ({"base": EARLY}, LATE, LATE, False),
        ({"base": LATE}, EARLY, LATE, True),
        ({"other": LATE}, EARLY, EARLY, False),
    ],
    ids=[
        "first trigger",
        "another triggerer",
        "another triggerer, after the first line",
        "redeferral",
        "redeferral, exact",
        "another triggerer after a redeferral",
        "a container that is not asked for",
    ],
)
def test_goes_on_where_the_log_is(
    annotation: dict[str, Any] | None, deferral: list[int] | None, position: list[int], may_repeat: bool
) -> None:
    wanted = {"containers": ["base"], "with_name": True, "positions": {"base": deferral} if deferral else {}}
    logs, said = seen(json.dumps(annotation) if annotation is not None else None, wanted)
    assert logs.rest() == {"positions": {"base": position}, "may_repeat": may_repeat}
    assert said == []


@pytest.mark.parametrize("annotation", ["", "[]", '{"base": 1}', '{"base": [1]}'])
def test_annotation_that_somebody_broke_is_said_and_passed_over(annotation: str) -> None:
    logs, said = seen(annotation, {"containers": ["base"]})
    assert logs.rest() == {"positions": {"base": [0, 0, 0]}, "may_repeat": False}
    assert len(said) == 1
    assert POSITIONS in said[0]


def test_nothing_is_streamed_where_nothing_is_wanted() -> None:
    logs, _ = seen(json.dumps({"base": LATE}), None)
    assert logs.rest() == {"positions": {}, "may_repeat": False}


def test_default_bound_is_the_documented_one() -> None:
    assert get_provider_info()["config"]["gpu_provider"]["options"]["log_streams"]["default"] == str(STREAMS)


class Restarted:
    """A container's log, of whichever run is the present one; each run has printed one line, and the first has ended.

    A kubelet that has started a container again gives the new run's log, before anybody is told of it.
    """

    def __init__(self) -> None:
        self.first_read = asyncio.Event()
        self.both_read = asyncio.Event()

    async def follow(self, path: str, **_: Any) -> AsyncGenerator[list[bytes], None]:
        run = 2 if self.first_read.is_set() else 1
        yield [b"2026-01-01T00:00:09.%d00000000Z run %d" % (run, run)]
        if run == 1:
            self.first_read.set()
        else:
            self.both_read.set()
            await asyncio.Event().wait()


@pytest.mark.parametrize("turns", [1, 100], ids=["told at once", "told late"])
async def test_container_that_is_started_twice_in_one_second_has_two_logs(
    monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    """The second log has none of the first one's lines, and none is missing, nor comes twice, for that."""
    monkeypatch.setattr(followed_log, "_SOON", 0.0)
    monkeypatch.setattr(followed_log, "_TOLD_WITHIN", 60.0)
    said: list[str] = []
    restarted = Restarted()
    api, wanted = cast("AsyncApi", restarted), {"containers": ["base"], "with_name": False}
    async with PodLogs(api, WAIT, wanted, lambda _, text, *words: said.append(text % words), alone=True) as logs:
        logs.follow(*running(1))
        await asyncio.wait_for(restarted.first_read.wait(), timeout=60)
        for _ in range(turns):
            await asyncio.sleep(0)
        logs.follow(*running(2))
        await asyncio.wait_for(restarted.both_read.wait(), timeout=60)
    assert said == ["run 1", "run 2"]


def running(run: int) -> tuple[PodState, dict[str, Any]]:
    """The pod as it was told while this run of its container ran; both have begun in one second."""
    state = {"running": {"startedAt": "2026-01-01T00:00:09Z"}}
    status = {"name": "base", "containerID": f"containerd://{run}", "state": state}
    raw = {
        "metadata": METADATA,
        "status": {"phase": "Running", "containerStatuses": [status]},
    }
    return PodState.parse(raw, WAIT.base_container), raw


@pytest.mark.parametrize("own", [{}, {"containerID": "containerd://1"}], ids=["as of the container", "its own"])
def test_container_that_ends_is_the_run_that_it_was(own: dict[str, str]) -> None:
    """A node may have begun the next one while it still reports the end; and some say the ID in one place only."""
    pod, raw = running(1)
    (status,) = raw["status"]["containerStatuses"]
    status["state"] = {"terminated": {**status["state"]["running"], **own, "exitCode": 1}}
    status["containerID"] = "containerd://2" if own else "containerd://1"
    ended = PodState.parse(raw, WAIT.base_container)
    assert pod.base is not None
    assert ended.base is not None
    assert ended.base.run == pod.base.run


def test_a_progress_bar_is_one_line_of_which_a_terminal_shows_the_end() -> None:
    bar = "\r".join(f"{at}%|####" for at in range(100))
    lines = lines_of(f"begins\r\n\n{bar}\nsaid\x0cmore\u2028still\n")
    assert lines == ["begins\r", bar, "said\x0cmore\u2028still"]
    assert [shown(line) for line in lines] == ["begins", "99%|####", "said more still"]
    assert shown(f"{bar}\r \r") == "99%|####"
