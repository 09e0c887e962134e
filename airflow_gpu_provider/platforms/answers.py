"""What a cloud has answered, by the error of ours that its answer became: AWS's code, or Google's status.

And what it would refuse, as far as it says so without being tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

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
