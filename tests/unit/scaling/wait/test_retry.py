"""What is borne while a pod is watched or collected, how long, and after which pauses."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider.errors import (
    ClusterUnreachable,
    CredentialsError,
    GpuError,
    PermissionDenied,
    PodFailed,
    PodPreempted,
    PoolSpecError,
)
from airflow_gpu_provider.scaling.wait.records import Narrator
from airflow_gpu_provider.scaling.wait.retry import Setbacks, persistently

START = datetime(2026, 1, 1, tzinfo=UTC)


@given(st.lists(st.floats(min_value=0, max_value=3600), max_size=20))
def test_pauses_grow_up_to_a_minute_and_begin_anew_after_a_good_time(gaps: list[float]) -> None:
    setbacks, now = Setbacks(), START
    for gap in gaps:
        before, now = setbacks, now + timedelta(seconds=gap)
        setbacks = Setbacks.from_record(setbacks.one_more(now).to_record())
        begins_anew = before.times == 0 or gap > 600
        assert setbacks.times == (1 if begins_anew else before.times + 1)
        assert setbacks.pause <= 60
        assert begins_anew or setbacks.pause >= before.pause
        assert setbacks.lasted >= timedelta(0)


def test_what_may_pass() -> None:
    first = Setbacks().one_more(START)
    for error in (ClusterUnreachable("away"), CredentialsError("refused"), PermissionDenied("no"), GpuError("a bug")):
        assert first.may_pass(error)
    for final in (PodFailed("exit 1"), PodPreempted("gone"), PoolSpecError("wrong")):
        assert not first.may_pass(final)


def test_refusal_that_lasts_is_meant() -> None:
    late = Setbacks().one_more(START).one_more(START + timedelta(minutes=6))
    assert not late.may_pass(PermissionDenied("no"))
    assert late.may_pass(ClusterUnreachable("away"))


async def test_what_works_at_last_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Setbacks, "pause", 0.0)
    said: list[str] = []
    failures = [ClusterUnreachable("away"), PermissionDenied("no"), ClusterUnreachable("away")]

    async def do() -> str:
        if failures:
            raise failures.pop()
        return "works"

    until = datetime.now(UTC) + timedelta(hours=1)
    assert await persistently(do, until=until, narrator=Narrator(said.append, started=START)) == "works"
    assert len(said) == 3


async def test_after_the_deadline_nothing_is_borne() -> None:
    async def do() -> None:
        raise ClusterUnreachable("away")

    with pytest.raises(ClusterUnreachable):
        await persistently(do, until=datetime.now(UTC), narrator=Narrator(print, started=START))
