"""DeleteGpuPoolOperator's wait for groups that go in the cloud's own time."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_gpu_provider import DeleteGpuPoolOperator
from airflow_gpu_provider.clouds.base import Group, GroupStatus
from airflow_gpu_provider.errors import PoolNotReleased
from airflow_gpu_provider.pools.candidates import Candidate
from tests.fakes.clock import VirtualClock
from tests.unit.scaling.pools import pool

CANDIDATE = Candidate(group="a", zone="us-west-2a", instance_type="g6.xlarge", market="ON_DEMAND")


class Platform:
    """A cloud with one group, which has these states at one look after the other, and then is gone."""

    def __init__(self, *states: GroupStatus) -> None:
        self._states = [*states]
        self.deletions = 0

    def observe(self) -> list[Group]:
        if not self._states:
            return []
        issues = ("IamNodeRoleNotFound: Role nodes cannot be found",) if self._states[0] == "failed" else ()
        status = self._states.pop(0)
        return [Group(name="a", candidate=CANDIDATE, status=status, desired=0, max_size=1, issues=issues)]

    def delete(self, report: Any) -> None:
        self.deletions += 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> VirtualClock:
    clock = VirtualClock()
    monkeypatch.setattr("airflow_gpu_provider.operators.delete.time", clock)
    return clock


def delete(platform: Platform, monkeypatch: pytest.MonkeyPatch, **arguments: Any) -> Any:
    reconciler = SimpleNamespace(platform=platform)
    monkeypatch.setattr("airflow_gpu_provider.tasks.run_identity.pool_opener", lambda *_: lambda _: reconciler)
    monkeypatch.setattr("airflow_gpu_provider.scaling.end.deletion.delete_pool", lambda *_, **__: ("a",))
    monkeypatch.setattr("airflow_gpu_provider.scaling.end.deletion.delete_pool_records", lambda *_: None)
    operator = DeleteGpuPoolOperator(task_id="delete", gpu_pool=pool(), **arguments)
    return operator.execute({})


def test_it_returns_when_the_group_is_gone(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    platform = Platform(*["deleting"] * 20)
    assert delete(platform, monkeypatch)["deleted"] == ["a"]
    assert (platform.deletions, clock.monotonic()) == (0, 100)


def test_a_group_that_could_not_be_deleted_yet_is_deleted_once_it_can_be(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = Platform("updating", "active", "deleting", "deleting")
    delete(platform, monkeypatch)
    assert platform.deletions == 2


def test_a_deletion_that_the_cloud_gave_up_is_requested_again(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EKS leaves a group DELETE_FAILED until somebody deletes it again."""
    platform = Platform("deleting", "failed", "failed", "deleting", "failed", "deleting")
    assert delete(platform, monkeypatch)["deleted"] == ["a"]
    assert platform.deletions == 3


def test_a_group_that_the_cloud_cannot_delete_ends_the_wait_with_its_reasons(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = Platform(*["deleting", "failed"] * 100)
    with pytest.raises(PoolNotReleased, match=r"could not delete a: IamNodeRoleNotFound: Role nodes cannot be found\."):
        delete(platform, monkeypatch)
    assert (platform.deletions, clock.monotonic()) == (3, 35)


def test_a_group_that_does_not_go_is_named_after_the_timeout(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PoolNotReleased, match="a of a are still there after 0:10:00"):
        delete(Platform(*["deleting"] * 1000), monkeypatch, timeout=timedelta(minutes=10))
    assert 600 < clock.monotonic() <= 605
