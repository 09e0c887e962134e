"""`python -m tests.rings test`, `landing`, `nightly`, or the names of tiers: all of them are run, whatever fails.

`landing` is what `.ci/run` has besides `test`, whose results it tells again at its end. `nightly` leaves out the tiers
that were green in a run before it on the same commit; FRESH=1 runs those, too.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import cast

from tests.rings import coverage, report
from tests.rings.running import FOLDER, TierResult, run_tier
from tests.rings.tiers import RINGS, TIERS, Ring, Tier


def main(names: list[str]) -> int:
    if not names or not all(name in RINGS or name in TIERS for name in names):
        print(f"usage: python -m tests.rings {'|'.join(RINGS)}, or of these: {' '.join(TIERS)}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))
    ring = names[0]
    groups = RINGS[cast(Ring, ring)] if ring in RINGS else tuple((TIERS[name],) for name in names)
    green = report.read_green(ring) if ring == "nightly" and not os.environ.get("FRESH") else {}
    # One tier is run to the end: what it is named for is asked for, nightly tests too.
    nightly = ring not in ("test", "landing") and not os.environ.get("QUICK")
    coverage.begin()
    began, results = time.monotonic(), list[TierResult]()
    for group in groups:
        results += run_group([tier for tier in group if tier.name not in green], nightly=nightly)
        results += [green[tier.name] for tier in group if tier.name in green]
        report.write(ring if ring in RINGS else "tiers", results)
    report.add_flakes(ring, [result for result in results if result.name not in green])
    coverage.report()
    all_results = [*report.read("test"), *results] if ring == "landing" else results
    print(f"\n== {' '.join(names)}: {time.monotonic() - began:.0f} s\n{report.table(all_results)}")
    print("\n".join(report.last_lines(all_results)), flush=True)
    return int(not all(result.is_well for result in results))


def run_group(tiers: list[Tier], *, nightly: bool) -> list[TierResult]:
    """Run these side by side; what several print is shown as each one ends."""
    if len(tiers) <= 1:
        return [_announced(tier, nightly=nightly) for tier in tiers]
    with ThreadPoolExecutor(len(tiers)) as threads:
        return list(threads.map(lambda tier: _shown_at_its_end(tier, nightly=nightly), tiers))


def _announced(tier: Tier, *, nightly: bool) -> TierResult:
    print(f"== {tier.name}: {tier.title}", flush=True)
    return run_tier(tier, nightly=nightly)


def _shown_at_its_end(tier: Tier, *, nightly: bool) -> TierResult:
    FOLDER.mkdir(parents=True, exist_ok=True)
    file = FOLDER / f"{tier.name}.log"
    with file.open("wb") as output:
        result = run_tier(tier, nightly=nightly, output=output)
    print(f"== {tier.name}: {tier.title}", flush=True)
    with file.open("rb") as output:
        shutil.copyfileobj(output, sys.stdout.buffer)
    sys.stdout.flush()
    return result


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
