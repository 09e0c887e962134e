"""create_once: creates an object whose name an earlier one may still have, or finds what a lost answer has created."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from airflow_gpu_provider.cluster.api_errors import ObjectChanged

Json = dict[str, Any]

NAME_FREED_IN = 120.0
"""Seconds within which an object that was deleted goes: KubeRay's finalizer holds a RayJob until it is stopped."""
_LOOK_EVERY = 0.5


def create_once(
    create: Callable[[], Json], read: Callable[[], Json | None], *, is_own: Callable[[Json], bool]
) -> Json | None:
    """Return the object, created now or by the same attempt before; None where another one has the name, and keeps it.

    Args:
        create: Creates it; raises ObjectChanged where its name is taken.
        read: Returns what has the name now.
        is_own: Says whether that is of the same attempt.
    """
    give_up_at = time.monotonic() + NAME_FREED_IN
    while True:
        try:
            return create()
        except ObjectChanged:
            there = read()
        is_going = there is None or "deletionTimestamp" in there["metadata"]
        if not is_going:
            return there if there is not None and is_own(there) else None
        if time.monotonic() > give_up_at:
            return None
        time.sleep(_LOOK_EVERY)
