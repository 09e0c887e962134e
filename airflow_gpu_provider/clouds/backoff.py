"""When a group can have machines: which status it then has, and how long it is passed over once its launches failed.

A group that has lost machines is not passed over: others are preferred to it for a while.

Pure: it is the cloud that remembers the failures and the losses, and shows what was set.

The times are cluster-autoscaler's own (--initial-node-group-backoff-duration, --max-node-group-backoff-duration,
--node-group-backoff-reset-timeout).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

from airflow_gpu_provider.money.prices import is_reserved

if TYPE_CHECKING:
    from airflow_gpu_provider.clouds.base import Group, GroupStatus, LaunchFailure, MachineLoss
    from airflow_gpu_provider.pools import Candidate, GpuPool

FIRST = timedelta(minutes=5)
LONGEST = timedelta(minutes=30)
FORGOTTEN_AFTER = timedelta(hours=3)
OFF_LIMITS = ("failed", "deleting")
"""The status of a group that can have no machine."""

COMING: tuple[GroupStatus, ...] = ("creating", "upgrading")
"""The status of a group that can have machines before long, and has none until then.

"upgrading" is one without machines that the cloud updates: a machine that came meanwhile could be replaced at once.
"""

LOST_SOON = timedelta(minutes=30)
"""A machine that fails within this time of its start is a loss on any market; later, only one that was taken back."""

_AT_ONCE = timedelta(minutes=1)  # losses of a zone so close together have one cause

_T = TypeVar("_T")

SHOWN_AFTER = timedelta(seconds=30)
"""When the cloud shows a size that was set; also how long a dead holder, whose writes are not kept, keeps its lock."""


@dataclass(frozen=True, kw_only=True)
class PassedOver:
    """A candidate is not tried before `until`: it had no machine `times` times in a row."""

    failure: LaunchFailure
    until: datetime
    times: int

    def __str__(self) -> str:
        often = "" if self.times == 1 else f"{ordinal(self.times)} time, "
        return f"{self.failure.reason}, {often}not tried again until {self.until:%H:%M}Z"


def passed_over(groups: Sequence[Group], now: datetime) -> dict[str, PassedOver]:
    """Return the groups that are not to be tried now, by name.

    A quota is the account's, not a zone's: where one zone met it, the others are passed over too, and a machine of the
    pool that has ended since, in whichever group, may have made room: each end is a reason to try once more. A failure
    that may or may not last is a reason to try another candidate, and none to try nothing.
    """
    last_end = max((group.last_end for group in groups if group.last_end), default=None)
    found = {group.name: over for group in groups if (over := _own(group, now)) and not _may_have_room(over, last_end)}
    limited = {_kind(group): found[group.name] for group in groups if _is_over_quota(found.get(group.name))}
    for group in groups:
        if group.name not in found and _kind(group) in limited:
            found[group.name] = limited[_kind(group)]
    with_room = (each for each in groups if each.status not in OFF_LIMITS and each.has_room)
    if all(group.name in found for group in with_room):
        return {name: over for name, over in found.items() if over.failure.kind != "other"}
    return found


@dataclass(frozen=True, kw_only=True)
class LossesThere:
    """Other candidates are preferred to this one before `until`: it lost machines `times` times, the last one `last`.

    The preference is among the candidates of its market after one loss, and among all after more.
    """

    last: MachineLoss
    until: datetime
    times: int

    @property
    def is_repeated(self) -> bool:
        return self.times > 1

    @property
    def lost(self) -> str:
        often = "" if self.times == 1 else f", {ordinal(self.times)} loss in a row"
        return f"machine {self.last.machine} was lost ({self.last.why}{often})"

    def __str__(self) -> str:
        return f"{self.lost}; others are preferred until {self.until:%H:%M}Z"


def losses_there(groups: Iterable[Group], now: datetime) -> dict[str, LossesThere]:
    """Return the groups to which others are preferred now, by name. What is reserved is paid for, and stays first."""
    found = {}
    for group in groups:
        losses = [loss for loss in group.losses if now - loss.at < FORGOTTEN_AFTER]
        if not losses or group.provisioner or is_reserved(group.candidate):
            continue
        times = 1 + sum(later.at - loss.at > _AT_ONCE for loss, later in pairwise(losses))
        until = losses[-1].at + pause(times)
        if now < until:
            found[group.name] = LossesThere(last=losses[-1], until=until, times=times)
    return found


def preferred(items: Sequence[_T], losses: Mapping[str, LossesThere], candidate: Callable[[_T], Candidate]) -> list[_T]:
    """Return those of the items whose candidates have lost no machine lately, in order; all if that leaves none."""
    calm = [each for each in items if not _has_repeated(losses.get(candidate(each).group))] or [*items]
    markets = {candidate(each).market for each in calm if candidate(each).group not in losses}
    return [each for each in calm if candidate(each).group not in losses or candidate(each).market not in markets]


def _has_repeated(losses: LossesThere | None) -> bool:
    return losses is not None and losses.is_repeated


def pause(times: int) -> timedelta:
    """Return how long to wait after so many failures in a row: twice as long each time, up to LONGEST."""
    return min(LONGEST, FIRST * (1 << min(times - 1, 16)))


def ordinal(number: int) -> str:
    """Return 1st, 2nd, 3rd, 4th."""
    suffix = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def _own(group: Group, now: datetime) -> PassedOver | None:
    failure = group.launch_failure
    if failure is None or group.provisioner:
        return None  # a provisioner has a back-off of its own
    times, until = in_a_row((*failure.earlier, failure.at))
    return PassedOver(failure=failure, until=until, times=times) if now < until else None


def in_a_row(failed_at: Iterable[datetime]) -> tuple[int, datetime]:
    """Return how often a candidate was tried in vain, and until when it is passed over; the oldest failure first.

    A cloud tries by itself several times before it is stopped: failures while a candidate is passed over are one
    with those before, and only make the time begin again.
    """
    times, last, until = 0, datetime.min, datetime.min
    for at in failed_at:
        if times == 0 or at - last > FORGOTTEN_AFTER:
            times = 1
        elif at >= until:
            times += 1
        last, until = at, at + pause(times)
    return times, until


def _may_have_room(over: PassedOver, last_end: datetime | None) -> bool:
    return last_end is not None and _is_over_quota(over) and over.failure.at < last_end


def _is_over_quota(over: PassedOver | None) -> bool:
    return over is not None and over.failure.kind == "quota"


def _kind(group: Group) -> tuple[str, str]:
    return group.candidate.market, group.candidate.instance_type


def growth_notes(
    pool: GpuPool, nodes: int, candidates: Sequence[Candidate], groups: Iterable[Group], now: datetime
) -> tuple[str, ...]:
    """Return what a plan says of missing nodes: where they would be asked for first, and what is passed over.

    There is nothing to say where no node is missing, or where others add them: they do not know of losses.
    """
    if pool.is_autoscaled:
        return ()
    groups = tuple(groups)
    losses = losses_there(groups, now)
    lost = (f"{each}: {losses[each.group]}" for each in candidates if each.group in losses)
    live = {group.name: len(group.live) for group in groups}
    limits = {group.name: group.max_size for group in groups}
    missing = min(nodes, pool.max_nodes) - sum(live.values())
    if missing <= 0:
        return ()
    over = passed_over(groups, now)
    can_come = [each for each in candidates if each.group not in over] or candidates
    first = min(
        preferred(can_come, losses, lambda each: each),
        key=lambda each: over[each.group].until if each.group in over else datetime.min.replace(tzinfo=UTC),
    )
    when = f", at {over[first.group].until:%H:%M}Z" if first.group in over else ""
    size = live.get(first.group, 0)
    grown = min(size + missing, limits.get(first.group, pool.max_nodes))
    grows = f"{first.group} {size}->{grown} ({first} first{when})"
    return (grows, *(f"not {each}: {over[each.group]}" for each in candidates if each.group in over), *lost)
