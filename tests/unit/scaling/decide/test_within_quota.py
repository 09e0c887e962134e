"""Which groups grow, where runs have asked for quotas before they wanted nodes."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_gpu_provider.scaling.decide.decisions import decide
from airflow_gpu_provider.scaling.decide.snapshot import QUOTA_HOLDS
from airflow_gpu_provider.scaling.state.demand import QuotaCheck
from tests.unit.scaling.pools import EARLIER, NOW, A, B, C, lease, snapshot

ALL = {A, B, C}


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
