"""ObjectLogs: how far all ranks' logs are written, carried from one triggerer to the next; and who is heard."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider.cluster.model.pod_log import POSITIONS
from airflow_gpu_provider.training.log.object_logs import ObjectLogs, _newer, shown_as
from airflow_gpu_provider.training.watch.gang_view import OneGang
from tests.unit.training.test_gang_wait import RUNS, WAIT


def api(positions: str | None) -> Any:
    async def get(path: str, **params: str) -> Any:
        assert path == "apis/batch/v1/namespaces/ml/jobs/train"
        return {"metadata": {"annotations": {} if positions is None else {POSITIONS: positions}}}

    return SimpleNamespace(get=get)


def wanted(**changes: Any) -> dict[str, Any]:
    return {"containers": ["base"], **changes}


async def test_a_triggerer_goes_on_where_the_one_before_has_written_it_down() -> None:
    kept = json.dumps({"train-0-a": {"base": [5, 2, 700]}, "train-1-b": {"base": [4, 1, 300]}})
    carried = {"train-1-b": {"base": [4, 2, 500]}}
    async with ObjectLogs(api(kept), WAIT, wanted(positions=carried), print) as logs:
        assert logs.rest() == {
            "positions": {"train-0-a": {"base": [5, 2, 700]}, "train-1-b": {"base": [4, 2, 500]}},
            "may_repeat": True,
        }


@pytest.mark.parametrize("annotation", [None, "no JSON"])
async def test_what_nobody_has_written_down_begins_anew(annotation: str | None) -> None:
    async with ObjectLogs(api(annotation), WAIT, wanted(), print) as logs:
        assert logs.rest() == {"positions": {}, "may_repeat": False}


async def test_silence_is_known_only_where_all_ranks_are_followed() -> None:
    async with ObjectLogs(api(None), WAIT, {"containers": []}, print) as logs:
        assert logs.silence() is None
    async with ObjectLogs(api(None), WAIT, wanted(), print) as logs:
        silence = logs.silence()
        assert silence is not None
        assert silence.last_lines == {}


async def test_ranks_that_nobody_wants_are_followed_only_for_a_sign_of_life() -> None:
    raw = {"metadata": {"annotations": {}}}
    for hang_seconds, followed in ((None, set()), (60.0, {RUNS.name})):
        kind = OneGang(replace(WAIT, hang_seconds=hang_seconds))
        async with kind.logs(api(None), wanted(ranks=[0], containers=["other"]), print) as logs:
            logs.follow(RUNS, raw, 1)
            assert set(logs.rest()["positions"]) == followed


POSITION = st.lists(st.integers(0, 9), min_size=3, max_size=3)


@given(st.dictionaries(st.sampled_from("ab"), POSITION), st.dictionaries(st.sampled_from("ab"), POSITION))
def test_the_newest_position_counts(known: dict[str, list[int]], kept: dict[str, list[int]]) -> None:
    newer = _newer(known, kept)
    assert newer.keys() == known.keys() | kept.keys()
    for name, position in newer.items():
        assert position[-1] == max(each[name][-1] for each in (known, kept) if name in each)


def test_the_container_that_trains_has_its_ranks_name_alone() -> None:
    assert shown_as("base", rank=3, base="base") == "rank 3"
    assert shown_as("proxy", rank=3, base="base") == "rank 3 proxy"
