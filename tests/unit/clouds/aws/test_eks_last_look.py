"""What a look at a pool asks again, and what it takes from the last one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_gpu_provider.clouds.aws.node_groups import TURN, LastLook

NOW = datetime(2026, 3, 1, 3, tzinfo=UTC)
FAILED = {"StatusCode": "Failed", "Description": "Launching a new EC2 instance", "StartTime": NOW, "StatusMessage": "-"}
LAUNCHING = {"StatusCode": "InProgress", "Description": "Launching a new EC2 instance: i-1", "StartTime": NOW}


def asg(desired: int = 0, *states: str) -> dict[str, Any]:
    instances = [{"InstanceId": f"i-{number}", "LifecycleState": state} for number, state in enumerate(states)]
    return {"AutoScalingGroupName": "asg", "DesiredCapacity": desired, "Instances": instances}


def look_at(**status: str) -> LastLook:
    """Of node groups by name, each at rest, described now in that order."""
    look = LastLook()
    names = list(status)
    assert look.unknown(names) == names
    for number, name in enumerate(names):
        look.describe(name, {"status": status[name]}, None, NOW + timedelta(seconds=number))
    look.note(dict.fromkeys(names, asg()))
    return look


def due(look: LastLook, now: datetime, *, changed: Sequence[str] = (), busy: Sequence[str] = ()) -> list[str]:
    return look.due(now, changed=changed, busy=busy)


def test_what_is_at_rest_is_described_again_after_a_minute_some_at_a_time() -> None:
    look = look_at(a="ACTIVE", b="ACTIVE", c="DEGRADED", d="ACTIVE")
    assert due(look, NOW + TURN - timedelta(seconds=1)) == []
    later = NOW + TURN + timedelta(seconds=10)
    assert due(look, later) == ["a", "b"]
    for name in ("a", "b"):
        look.describe(name, {"status": "ACTIVE"}, asg(), later)
    assert due(look, later) == ["c", "d"]
    # Those that are read anyway leave fewer turns.
    assert due(look, later, changed=["c"]) == ["d"]
    assert due(look, later, changed=["a", "b"]) == []
    assert due(look, later, busy=["a", "b", "c"]) == ["c"]


def test_what_is_on_its_way_is_described_again_at_once_the_most_preferred_each_time() -> None:
    look = look_at(a="ACTIVE", b="CREATING", c="UPDATING", d="DELETING")
    for seconds in (10, 20):
        now = NOW + timedelta(seconds=seconds)
        found = due(look, now)
        assert found == ["b", "c" if seconds == 10 else "d"]
        for name in found:
            look.describe(name, {"status": "UPDATING"}, asg(), now)
    assert due(look, now, changed=["a"], busy=["b", "c"])[0] == "b"


def test_a_group_whose_auto_scaling_group_changed_is_described_twice() -> None:
    """The first answer may be of before the change."""
    look = look_at(a="ACTIVE", b="ACTIVE")
    now = NOW + timedelta(seconds=15)
    assert look.changed({"a": asg(1), "b": asg()}) == ["a"]
    look.describe("a", {"status": "ACTIVE"}, asg(1), now)
    assert (look.changed({"a": asg(1), "b": asg()}), due(look, now)) == ([], ["a"])
    look.describe("a", {"status": "ACTIVE"}, asg(1), now)
    assert due(look, now) == []
    assert look.changed({"b": asg()}) == ["a"]  # it is gone


def test_what_is_gone_or_was_written_to_is_described_anew() -> None:
    look = look_at(a="ACTIVE", b="ACTIVE")
    assert (look.unknown(["b"]), [*look.groups()]) == ([], ["b"])
    look.forget("b")
    assert look.unknown(["b"]) == ["b"]
    look.describe("b", None, None, NOW)
    assert look.groups() == {}


@pytest.mark.parametrize(
    ("group", "activities", "is_read"),
    [
        (asg(), [], False),
        (asg(), [FAILED], False),
        (asg(1, "InService"), [], False),
        (asg(1), [], True),
        (asg(1, "Pending"), [], True),
        (asg(0, "Terminating"), [], True),
        (asg(0, "InService"), [], True),
        (asg(), [LAUNCHING], True),
    ],
    ids=["empty", "failed", "full", "wants one", "starting", "ending", "to end", "launch under way"],
)
def test_activities_are_read_of_what_is_not_at_rest(group: dict[str, Any], activities: Any, is_read: bool) -> None:
    look = LastLook()
    assert look.may_have_more("asg", group, NOW)  # nobody has read them
    look.read("asg", activities, group, NOW)
    assert look.activities("asg") == activities
    assert look.may_have_more("asg", group, NOW + timedelta(seconds=15)) == is_read
    assert look.may_have_more("asg", group, NOW + timedelta(minutes=10))


def test_activities_are_read_again_after_a_change_which_they_may_not_show_yet() -> None:
    look = LastLook()
    look.read("asg", [], asg(), NOW)
    now = NOW + timedelta(seconds=15)
    assert look.may_have_more("asg", asg(1, "InService"), now)
    look.read("asg", [], asg(1, "InService"), now)
    assert look.may_have_more("asg", asg(1, "InService"), now + timedelta(seconds=15))
    look.read("asg", [], asg(1, "InService"), now + timedelta(seconds=15))
    assert not look.may_have_more("asg", asg(1, "InService"), now + timedelta(seconds=30))
