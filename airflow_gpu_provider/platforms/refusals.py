"""Refusals: what a cloud would refuse of what a run changes, as far as it says so without being tried."""

from __future__ import annotations

from dataclasses import dataclass


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
