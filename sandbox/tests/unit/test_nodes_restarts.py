"""When a container is started again, and after how long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_sandbox.nodes.restarts import BackOff, go_duration, should_restart


@pytest.mark.parametrize(
    ("policy", "code", "is_init", "again"),
    [
        ("Always", 0, False, True),
        ("Always", 1, False, True),
        ("Always", 0, True, False),
        ("Always", 1, True, True),
        ("OnFailure", 0, False, False),
        ("OnFailure", 1, False, True),
        ("OnFailure", 1, True, True),
        ("Never", 1, False, False),
        ("Never", 1, True, False),
    ],
)
def test_restart_policies(policy: str, code: int, is_init: bool, again: bool) -> None:
    assert should_restart({}, policy, code, is_init=is_init) is again


def test_a_sidecar_is_always_restarted() -> None:
    assert should_restart({"restartPolicy": "Always"}, "Never", 0, is_init=True)


def test_a_containers_own_policy_and_rules_win() -> None:
    rules = [{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]
    container = {"restartPolicy": "Never", "restartPolicyRules": rules}
    assert should_restart(container, "Always", 42, is_init=False)
    assert not should_restart(container, "Always", 1, is_init=False)
    assert not should_restart({"restartPolicy": "OnFailure"}, "Always", 0, is_init=False)
    unlike = [{"action": "Restart", "exitCodes": {"operator": "NotIn", "values": [1]}}]
    assert should_restart({"restartPolicy": "Never", "restartPolicyRules": unlike}, "Never", 2, is_init=False)


def test_the_back_off_doubles_from_ten_seconds_to_five_minutes() -> None:
    back_off = BackOff()
    waits = [back_off.after_end(at) for at in range(9)]
    assert waits == [0, 10, 20, 40, 80, 160, 300, 300, 300]


def test_the_back_off_starts_anew_after_ten_quiet_minutes() -> None:
    back_off = BackOff()
    assert [back_off.after_end(at) for at in (0, 1, 601, 1202)] == [0, 10, 20, 0]


@given(st.lists(st.floats(min_value=0, max_value=5000), min_size=1, max_size=30))
def test_a_wait_is_never_longer_than_five_minutes(gaps: list[float]) -> None:
    back_off, now = BackOff(), 0.0
    for gap in gaps:
        now += gap
        wait = back_off.after_end(now)
        assert wait == 0 or 10 <= wait <= 300


@pytest.mark.parametrize(("seconds", "text"), [(10, "10s"), (80, "1m20s"), (300, "5m0s")])
def test_durations_as_go_prints_them(seconds: float, text: str) -> None:
    assert go_duration(seconds) == text
