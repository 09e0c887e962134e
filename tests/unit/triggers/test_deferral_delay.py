"""A wait that goes on after another one is told from one that begins."""

from __future__ import annotations

import time
from typing import Any

import pytest

from airflow_gpu_provider.triggers.record import has_returned


@pytest.mark.parametrize(
    ("seconds_ago", "changes", "returned"),
    [(0, {}, False), (5, {}, False), (60, {}, True), (0, {"pause": 5.0}, True), (0, {"pause": 0.0}, False)],
)
def test_a_wait_that_is_taken_up_late_or_after_a_setback_has_returned(
    seconds_ago: float, changes: dict[str, Any], returned: bool
) -> None:
    assert has_returned({"deferred_at": time.time() - seconds_ago, **changes}) is returned
