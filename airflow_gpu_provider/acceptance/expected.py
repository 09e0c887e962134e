"""What the sandbox shows of the same acceptance, and how an account's differs from it. Pure.

`as_the_sandbox_shows.json` is written by the tests, which run the acceptance in the sandbox: what is not in it, no test
of this package has met.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from airflow_gpu_provider.acceptance.steps import StepReport
from airflow_gpu_provider.api_calls import ApiCall


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What the sandbox shows on one cloud.

    Attributes:
        calls: The calls that were made, "api operation".
        errors: The errors that were met, "api operation: error".
        phases: The phases of the steps' tasks, "task: phase".
    """

    calls: frozenset[str] = frozenset()
    errors: frozenset[str] = frozenset()
    phases: frozenset[str] = frozenset()

    @classmethod
    def on(cls, kind: str) -> Expected:
        """Return what is recorded of a cloud ("eks", "gke")."""
        data = json.loads(files(__package__).joinpath("as_the_sandbox_shows.json").read_text())
        return cls.of(data.get(kind, {}))

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Expected:
        return cls(**{name: frozenset(record.get(name, ())) for name in ("calls", "errors", "phases")})

    @classmethod
    def seen(cls, steps: Sequence[StepReport], calls: Mapping[ApiCall, int]) -> Expected:
        """Return what one acceptance has shown."""
        return cls(
            calls=frozenset(f"{each.api} {each.operation}" for each in calls),
            errors=frozenset(f"{each.api} {each.operation}: {each.error}" for each in calls if each.error),
            phases=frozenset(phase for step in steps for phase, _ in step.phases),
        )

    def to_json(self) -> dict[str, list[str]]:
        return {"calls": sorted(self.calls), "errors": sorted(self.errors), "phases": sorted(self.phases)}


def differences(expected: Expected, steps: Sequence[StepReport], calls: Mapping[ApiCall, int]) -> Iterator[str]:
    """Yield what an acceptance has shown that the sandbox does not, and the phases that only the sandbox has."""
    seen = Expected.seen(steps, calls)
    for step in steps:
        if step.outcome == "failed":
            yield f"{step.name} failed, and passes in the sandbox"
    for each in sorted(seen.errors - expected.errors):
        yield f"an error that the sandbox does not give: {each}"
    for each in sorted(seen.calls - expected.calls):
        yield f"a call that is not made in the sandbox: {each}"
    for each in sorted(seen.phases - expected.phases):
        yield f"a phase that the sandbox does not have: {each}"
    if all(step.outcome == "passed" for step in steps):
        for each in sorted(expected.phases - seen.phases):
            yield f"a phase that was not seen: {each}"
