"""Runs one tier: its commands, its tests, and what failed of them once more, by itself, at the tier's end.

What fails twice has failed. What then passes is flaky: it is told, and does not fail the tier.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tests.rings import coverage, outcomes
from tests.rings.outcomes import Outcomes
from tests.rings.tiers import BIN, Tier

MOST_FOR_A_SECOND_TRY = 40
"""Failures of one tier. More are no flakes: a fixture of many tests may fail once, a tier does not."""

LONGEST_SILENCE = 600
"""Seconds without any test that begins or ends, more than which are told: all tests together wait for something."""

FOLDER = Path("build") / "tiers"


@dataclass(kw_only=True)
class TierResult:
    """How a tier went. Tests that failed, and flaky ones, have the first line of their first error."""

    name: str
    seconds: float = 0.0
    tests: int = 0
    skipped: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    flaky: dict[str, str] = field(default_factory=dict)
    error: str | None = None
    """What failed beside the tests, in a line."""
    left_out: str | None = None
    """Why it was not run, in a line."""
    stalled: str | None = None
    """When no test began or ended for longer than any should take, in a line."""

    @property
    def is_well(self) -> bool:
        return not self.failed and self.error is None


def run_tier(tier: Tier, *, nightly: bool, output: IO[bytes] | None = None) -> TierResult:
    """Return when all of its processes have ended; `output` gets what they print, by default this process's."""
    result = TierResult(name=tier.name)
    if tier.needs and not shutil.which(tier.needs):
        result.left_out = f"{tier.needs} is missing on this machine"
        return result
    began = time.monotonic()
    result.error = _run_commands(tier, output)
    if result.error is None and tier.tests:
        _run_tests(tier, result, nightly=nightly, output=output)
    result.seconds = round(time.monotonic() - began, 1)
    return result


def _run_commands(tier: Tier, output: IO[bytes] | None) -> str | None:
    """Run all of them, and return the first that failed."""
    codes = {command: _call(command, tier, output) for command in tier.commands}
    return next((f"`{' '.join(command)}` ended with {code}" for command, code in codes.items() if code), None)


def _run_tests(tier: Tier, result: TierResult, *, nightly: bool, output: IO[bytes] | None) -> None:
    tests = (*tier.tests, *(() if nightly else ("-m", "not nightly")))
    code, first = _pytest(tier, tests, "first", output)
    result.tests, result.skipped, result.failed = first.count, len(first.skipped), first.failed
    if first.silence > LONGEST_SILENCE:
        result.stalled = f"no test began or ended for {first.silence:.0f} s, in {first.silent or 'none'}"
    if not first.is_whole:
        code, second = _pytest(tier, tests, "again", output)
        result.tests, result.skipped = second.count, len(second.skipped)
        result.error = None if second.is_whole else f"pytest ended twice before all tests had run, with {code}"
        _judge(result, first, second)
    elif code and not first.failed:
        result.error = f"pytest ended with {code}, though no test failed: its last lines say why"
    elif 0 < len(first.failed) <= MOST_FOR_A_SECOND_TRY:
        ids = FOLDER / f"{tier.name}-again.txt"
        ids.write_text("".join(f"{test}\n" for test in sorted(first.failed)))
        _, second = _pytest(tier, (f"@{ids}",), "again", output)
        _judge(result, first, second)


def _judge(result: TierResult, first: Outcomes, second: Outcomes) -> None:
    result.flaky = {test: error for test, error in first.failed.items() if test in second.passed}
    still = {test: error for test, error in first.failed.items() if test not in second.passed}
    result.failed = second.failed | still


def _pytest(tier: Tier, arguments: Sequence[str], which: str, output: IO[bytes] | None) -> tuple[int, Outcomes]:
    file = FOLDER / f"{tier.name}-{which}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    python = coverage.python() or (f"{BIN}/python",)
    plugin = ("-p", "tests.rings.outcomes", "--outcomes", str(file))
    code = _call((*tier.wrapper, *python, "-m", "pytest", "-q", *plugin, *arguments), tier, output)
    return code, outcomes.read(file)


def _call(command: Sequence[str], tier: Tier, output: IO[bytes] | None) -> int:
    with subprocess.Popen(
        command, env={**os.environ, **tier.env}, stdin=subprocess.DEVNULL, stdout=output, stderr=output
    ) as process:
        try:
            return process.wait()
        except BaseException:  # told to end: so is what was started
            process.terminate()
            raise
