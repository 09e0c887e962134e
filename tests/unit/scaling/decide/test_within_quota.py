"""Which groups grow, where runs have asked for quotas before they wanted nodes."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_gpu_provider.clouds.base import Group, Machine
from airflow_gpu_provider.pools import Candidate
from airflow_gpu_provider.scaling.decide.decisions import decide
from airflow_gpu_provider.scaling.decide.snapshot import QUOTA_HOLDS, without_room
from airflow_gpu_provider.scaling.state.demand import QuotaCheck
from tests.unit.scaling.pools import EARLIER, NOW, A, B, C, lease, snapshot

ALL = {A, B, C}

SPOT, ON_DEMAND = (
    Candidate(group=market.lower(), zone="us-west-2a", instance_type="g6.xlarge", market=market)
    for market in ("SPOT", "ON_DEMAND")
)


def checked(*names: str, at: timedelta = timedelta()) -> QuotaCheck:
    return QuotaCheck(at=NOW - at, groups=names)


@pytest.mark.parametrize(
    ("checks", "grow"),
    [
        ((checked(A, B),), {C}),
        ((checked(A, B), None), {C}),  # who has not asked knows nothing
        ((checked(A, B), checked(B)), {A, C}),
        ((checked(A, B), checked()), ALL),
        ((checked(A, B, at=QUOTA_HOLDS),), ALL),
        ((None,), ALL),
    ],
)
def test_a_group_grows_where_one_who_wants_nodes_has_seen_quota_for_it(
    checks: tuple[QuotaCheck | None, ...], grow: set[str]
) -> None:
    leases = tuple(lease(f"run-{number}", over_quota=check) for number, check in enumerate(checks))
    seen = snapshot(leases=leases).within_quota()
    assert {group.name for group in seen.groups if group.max_size} == grow
    assert set(decide(seen).grow) <= grow


def test_what_a_run_saw_that_is_over_keeps_nothing_from_growing() -> None:
    over = lease("over", until=EARLIER, over_quota=checked(A, B, C))
    assert decide(snapshot(leases=(lease(), over)).within_quota()).grow


def test_a_group_over_quota_is_limited_to_its_live_machines() -> None:
    machines = (
        Machine(id="i1", group="spot", state="running"),
        Machine(id="i2", group="spot", state="terminating"),
    )
    group = Group(name="spot", candidate=SPOT, status="active", desired=2, max_size=5, machines=machines)
    other = Group(name="on_demand", candidate=ON_DEMAND, status="active", desired=0, max_size=5)
    assert [each.max_size for each in without_room((group, other), {"spot"})] == [1, 5]
