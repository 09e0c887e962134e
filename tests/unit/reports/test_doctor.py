"""What `airflow gpu doctor` makes of a pool that was looked at already."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_gpu_provider.reports.doctor import _Doctor
from tests.unit.scaling.pools import dry, pool, snapshot


@pytest.mark.parametrize(
    ("kind", "minutes_ago", "note", "results"),
    [
        ("quota", 60, "", ["ok"]),
        ("quota", 60, "not checked", ["warning"]),
        ("quota", 1, "", ["warning"]),
        ("out_of_stock", 60, "", ["warning"]),
    ],
    ids=["quota raised since", "quota not known", "still passed over", "no stock"],
)
def test_launches_over_a_quota_that_was_raised_are_no_warning(
    kind: Any, minutes_ago: float, note: str, results: list[str]
) -> None:
    def groups_over_quota(nodes: int, say: Any) -> frozenset[str]:
        if note:
            say(note)
        return frozenset()

    failed = replace(dry(minutes_ago), kind=kind)
    changed = {"failures": (failed,), "launch_failure": failed}
    seen = snapshot(train_a_g6_xlarge=changed)
    platform = SimpleNamespace(groups_over_quota=groups_over_quota)
    checks = _Doctor(SimpleNamespace(pool=pool(), platform=platform, snapshot=lambda: seen), "default").checks()  # type: ignore[arg-type]
    list(checks["quota"]())
    assert [result for result, *_ in checks["stock"]()] == results
