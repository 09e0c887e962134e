"""LastLook: what a process last saw of a pool's groups, so that the next look asks about what may have changed alone.

A pool may have dozens of groups, and each process that waits for it looks every few seconds. EKS and EC2 Auto Scaling
limit the calls of the whole account, and cluster-autoscaler keeps what it reads of node groups for the same reason
(kubernetes/autoscaler#3968). Auto Scaling groups are read all at once, in one call: the rest follows from them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from airflow_gpu_provider.platforms.aws.group_state import OVER

Answer = Mapping[str, Any]

TURN = timedelta(minutes=1)
"""After so long a node group, and what it launched, may be read again though its Auto Scaling group is as it was."""
TURNS = 2
"""How many have their turn in one look, less those that have changed."""
SHOWN_WITHIN = timedelta(seconds=15)
"""How old an answer may be: what is read so soon after a change is read once more."""
_OLD = timedelta(minutes=10)
_STABLE = ("ACTIVE", "DEGRADED", "CREATE_FAILED")


@dataclass(frozen=True, kw_only=True)
class _Described:
    """A node group as DescribeNodegroup had it; its Auto Scaling group then, and when it is due again."""

    group: Answer
    asg: Answer | None
    due_at: datetime


@dataclass(frozen=True, kw_only=True)
class _Read:
    """Activities of an Auto Scaling group, as it was before they were read, and since when it is like that."""

    activities: Sequence[Answer]
    asg: Answer
    at: datetime
    since: datetime | None


class LastLook:
    """Of one process, at one pool. `now` is AWS's time throughout."""

    def __init__(self) -> None:
        self._groups: dict[str, _Described] = {}
        self._activities: dict[str, _Read] = {}

    # -- node groups -----------------------------------------------------------------------------------------

    def unknown(self, names: Iterable[str]) -> list[str]:
        """Return those of the node groups that exist, the most preferred first, which are not known yet.

        What is gone is forgotten.
        """
        names = tuple(names)
        self._groups = {name: self._groups[name] for name in names if name in self._groups}
        return [name for name in names if name not in self._groups]

    def groups(self) -> dict[str, Answer]:
        """Return what is known of node groups, by name."""
        return {name: seen.group for name, seen in self._groups.items()}

    def changed(self, asgs: Mapping[str, Answer]) -> list[str]:
        """Return the node groups whose Auto Scaling groups, by their names, are not as they were."""
        return [name for name, seen in self._groups.items() if seen.asg is not None and asgs.get(name) != seen.asg]

    def due(self, now: datetime, *, changed: Collection[str], busy: Collection[str]) -> list[str]:
        """Return the node groups whose turn it is: on their way to another state, or described a while ago.

        The most preferred one that is on its way has a turn in each look. The more are read anyway, as they have
        `changed` or are `busy`, the fewer of those that are not on their way have one.
        """
        waiting = [name for name, seen in self._groups.items() if name not in changed and now >= seen.due_at]
        coming = [name for name in waiting if self._groups[name].group["status"] not in _STABLE]
        coming = [*coming[:1], *self._oldest_first(coming[1:])][:TURNS]
        settled = self._oldest_first(name for name in waiting if self._groups[name].group["status"] in _STABLE)
        room = max(TURNS - len({*changed, *busy, *coming}), 0 if changed or coming else 1)
        return [*coming, *settled[:room]]

    def _oldest_first(self, names: Iterable[str]) -> list[str]:
        return sorted(names, key=lambda name: self._groups[name].due_at)

    def describe(self, name: str, group: Answer | None, asg: Answer | None, now: datetime) -> None:
        """Keep DescribeNodegroup's answer; `asg` is its Auto Scaling group, None where that is not known yet.

        Of one whose Auto Scaling group has just changed the answer may be of before.
        """
        if group is None:
            self._groups.pop(name, None)
            return
        before = self._groups.get(name)
        has_changed = before is not None and before.asg is not None and before.asg != asg
        is_settled = group["status"] in _STABLE and not has_changed
        self._groups[name] = _Described(group=group, asg=asg, due_at=now + TURN if is_settled else now)

    def note(self, asgs: Mapping[str, Answer]) -> None:
        """Keep the Auto Scaling groups of node groups that were described before those were known."""
        for name, seen in self._groups.items():
            if seen.asg is None and name in asgs:
                self._groups[name] = replace(seen, asg=asgs[name])

    def forget(self, name: str) -> None:
        """Have a node group described again: it was written to."""
        self._groups.pop(name, None)

    # -- activities ------------------------------------------------------------------------------------------

    def may_have_more(self, name: str, asg: Answer, now: datetime) -> bool:
        """Return True if there may be activities of an Auto Scaling group that were not read.

        There are none of one that has all the instances that it wants, and is as it was when they were read; but that
        another process tried it in between, and gave up, shows in nothing else: each has its turn.
        """
        read = self._activities.get(name)
        if read is None or read.asg != asg or not _is_at_rest(asg):
            return True
        is_under_way = any(activity["StatusCode"] not in OVER for activity in read.activities)
        may_be_old = read.since is not None and read.at - read.since < SHOWN_WITHIN
        return is_under_way or may_be_old or now - read.at >= _OLD

    def was_sized(self, name: str) -> None:
        """Have the activities of an Auto Scaling group read again, whose size this process has set.

        Another process may give up before the next look what came of it, and the group is as it was.
        """
        self._activities.pop(name, None)

    def activities(self, name: str) -> Sequence[Answer]:
        """Return the activities that were last read of an Auto Scaling group, the newest first."""
        read = self._activities.get(name)
        return read.activities if read else ()

    def read(self, name: str, activities: Sequence[Answer], asg: Answer, now: datetime) -> None:
        """Keep activities; `asg` is the group as it was before they were read."""
        before = self._activities.get(name)
        is_as_before = before is None or before.asg == asg
        since = (before.since if before else None) if is_as_before else now
        self._activities[name] = _Read(activities=activities, asg=asg, at=now, since=since)


def _is_at_rest(asg: Answer) -> bool:
    instances = asg.get("Instances", [])
    in_service = sum(instance["LifecycleState"] == "InService" for instance in instances)
    return bool(len(instances) == in_service == int(asg.get("DesiredCapacity", 0)))
