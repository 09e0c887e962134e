"""From where a trigger goes on with a pod's log: what the deferral says, and what the pod's annotation says."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from airflow_gpu_provider.cluster.async_api import AsyncApi
from airflow_gpu_provider.cluster.pod_log import POSITIONS
from airflow_gpu_provider.cluster.pod_state import PodState
from airflow_gpu_provider.get_provider_info import get_provider_info
from airflow_gpu_provider.pods.followed_log import STREAMS, PodLogs
from tests.unit.pods.test_pod_wait import WAIT

EARLY, LATE = [100, 3, 100_500_000_000], [200, 7, 200_500_000_000]


def seen(annotation: str | None, wanted: dict[str, Any] | None) -> tuple[PodLogs, list[str]]:
    """A pod's streams that have seen the pod, whose containers have not started; and what they said."""
    said: list[str] = []
    logs = PodLogs(cast("AsyncApi", None), WAIT, wanted, lambda level, text, *arguments: said.append(text % arguments))
    metadata: dict[str, Any] = {"namespace": WAIT.namespace, "name": WAIT.name, "uid": WAIT.uid}
    raw = {"metadata": metadata | ({"annotations": {POSITIONS: annotation}} if annotation is not None else {})}
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
