"""What a cloud answers: errors by its code or status, what it would refuse, does to a group, and reserves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

from airflow_gpu_provider.errors import CloudError, GpuError, PoolSpecError
from airflow_gpu_provider.pools import GpuPool


@dataclass(frozen=True, kw_only=True)
class Refusals:
    """What a run changes in the cloud and the cloud would refuse, as far as it answers such a question.

    Attributes:
        refused: Permissions, in the cloud's words.
        unasked: Why it did not answer, for people; empty where it did.
        fix: Where it is written what to allow.
    """

    refused: tuple[str, ...] = ()
    unasked: str = ""
    fix: str = ""


@dataclass(frozen=True, kw_only=True)
class GroupUpdate:
    """What the cloud does to a group whose status is "updating".

    Attributes:
        name: The operation's name.
        kind: What it is, in the cloud's word: UPGRADE_NODES, say.
        since: When it began; None where the cloud does not tell it.
        what_to_do: For people: how to look at it, and to end it.
        takes: For how long it may take a machine before it is said to take long.
    """

    name: str
    kind: str
    since: datetime | None = None
    what_to_do: str = ""
    takes: timedelta = timedelta(hours=1)

    def is_long(self, now: datetime) -> bool:
        """Return True if it takes longer than one machine should."""
        return self.since is not None and now - self.since > self.takes

    def __str__(self) -> str:
        since = f" since {self.since:%Y-%m-%d %H:%MZ}" if self.since else ""
        return f"{self.name}, {self.kind}{since}"


@dataclass(frozen=True, kw_only=True)
class Reserved:
    """The reservation from which alone a group has machines, at one moment.

    Attributes:
        id: The cloud's name of it.
        began_at: Since when it gives machines; None where it does not yet.
        opens_at: When it begins to give machines, while it has not; a cloud may take a while beyond that.
        ends_at: From when on its machines have to be empty, because the cloud ends them soon; None: it ends none.
        has_ended: They have to be by now.
        why_not: Why it gives no machine now, for people; empty where it does.
        is_over: It never gives one again.
    """

    id: str
    began_at: datetime | None = None
    opens_at: datetime | None = None
    ends_at: datetime | None = None
    has_ended: bool = False
    why_not: str = ""
    is_over: bool = False


def has_code(error: GpuError, *codes: str) -> bool:
    """Return True if an error raised by a cloud's `mapped_errors` is its answer with one of these codes."""
    return error.details.get("code") in codes or error.details.get("status") in codes


def message_of(error: GpuError) -> str:
    """Return the cloud's own words of an error raised by its `mapped_errors`."""
    return str(error.details.get("message", error))


@contextmanager
def unless_answered(*codes: str) -> Iterator[None]:
    """End the block without an error where the cloud answers one of its calls with one of these codes."""
    try:
        yield
    except CloudError as error:
        if not has_code(error, *codes):
            raise


@contextmanager
def refusals_of(cloud: str, pool: GpuPool, doing: str, *codes: str) -> Iterator[None]:
    """Raise as PoolSpecError that the cloud refuses what a spec asks for: an answer with one of these codes."""
    try:
        yield
    except CloudError as error:
        if not has_code(error, *codes):
            raise
        what = f"Pool {pool.name}: {cloud} refuses to {doing}: {message_of(error)}."
        raise PoolSpecError(what, "Correct the pool's spec.", **error.details) from error
