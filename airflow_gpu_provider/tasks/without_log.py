"""An error's sentences without what a training has printed, for those who are not to read its log. Pure.

What a training prints is quoted in two places: within `what`, and then `details["without_log"]` has that sentence
without it; and in lines after `fix`, which the last sentence before them announces.
"""

from __future__ import annotations

from airflow_gpu_provider.errors import GpuError


def without_log(error: GpuError) -> dict[str, str]:
    """Return what happened and what to do, as `what` and `fix`."""
    first, has_lines, _ = error.fix.partition("\n")
    if has_lines:
        before, stop, _ = first.rpartition(". ")
        first = f"{before}{stop}".strip()
    return {"what": str(error.details.get("without_log") or error.what), "fix": first}
