"""What a ring tells at its end: a table of its tiers, what failed, and what is flaky, also as files in build/."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from tests.rings.running import TierResult

_CHANGED = " and changed files"
FLAKY = Path("build") / "flaky.json"
"""Every flake that a ring has met in this checkout, the newest last."""


def table(results: Sequence[TierResult]) -> str:
    """One row for each tier, and one for all."""
    rows = [_row(result) for result in results]
    failed, flaky = sum(len(each.failed) for each in results), sum(len(each.flaky) for each in results)
    seconds = sum(each.seconds for each in results)
    rows.append(("all", sum(each.tests for each in results), failed, flaky, f"{seconds:.0f}", ""))
    return "\n".join(
        f"{name:<12} {tests!s:>6} {failed!s:>7} {flaky!s:>6} {seconds:>8}  {said}".rstrip()
        for name, tests, failed, flaky, seconds, said in [("tier", "tests", "failed", "flaky", "seconds", ""), *rows]
    )


def _row(result: TierResult) -> tuple[str, int, int, int, str, str]:
    said = result.left_out or result.error or ""
    return (result.name, result.tests, len(result.failed), len(result.flaky), f"{result.seconds:.0f}", said)


def last_lines(results: Sequence[TierResult]) -> Iterator[str]:
    """Each test that failed or is flaky with its first error, and the count of all."""
    for result in results:
        if result.error:
            yield f"FAILED {result.name}: {result.error}"
        yield from (f"FAILED {test}: {error}" for test, error in result.failed.items())
    yield from (f"STALLED {result.name}: {result.stalled}" for result in results if result.stalled)
    for result in results:
        yield from (f"FLAKY {test}: passed by itself; before, {error}" for test, error in result.flaky.items())
    tests, skipped = sum(each.tests for each in results), sum(each.skipped for each in results)
    failed = sum(len(each.failed) + bool(each.error) for each in results)
    tests -= sum(len(each.failed) for each in results) + skipped
    yield f"{tests} passed, {failed} failed, {skipped} skipped"


def write(ring: str, results: Sequence[TierResult]) -> None:
    """build/RING.json, after each tier: whatever ends a ring of hours, what it has found is there."""
    _file(ring).parent.mkdir(exist_ok=True)
    told = {"commit": commit(), "at": datetime.now(UTC).isoformat(timespec="seconds")}
    _file(ring).write_text(json.dumps({**told, "tiers": [asdict(result) for result in results]}, indent=2) + "\n")


def add_flakes(ring: str, results: Iterable[TierResult]) -> None:
    known = json.loads(FLAKY.read_text()) if FLAKY.exists() else []
    at, now = commit(), datetime.now(UTC).isoformat(timespec="seconds")
    for result in results:
        found = {"ring": ring, "tier": result.name, "commit": at, "at": now}
        known += [{**found, "test": test, "error": error} for test, error in result.flaky.items()]
    FLAKY.write_text(json.dumps(known, indent=2) + "\n")


def read(ring: str) -> list[TierResult]:
    """The tiers of this ring's last run, if it was on these very files."""
    if not _file(ring).exists() or _CHANGED in commit():
        return []
    told = json.loads(_file(ring).read_text())
    return [TierResult(**each) for each in told["tiers"]] if told["commit"] == commit() else []


def read_green(ring: str) -> dict[str, TierResult]:
    """Those of them that went well, by name."""
    return {result.name: result for result in read(ring) if result.is_well and not result.left_out}


def commit() -> str:
    """The checkout's commit, and whether files differ from it."""
    head, status = _git("rev-parse", "HEAD"), _git("status", "--porcelain")
    return head + _CHANGED if status else head


def _git(*arguments: str) -> str:
    return subprocess.run(("git", *arguments), capture_output=True, text=True, check=True).stdout.strip()


def _file(ring: str) -> Path:
    return Path("build") / f"{ring}.json"
