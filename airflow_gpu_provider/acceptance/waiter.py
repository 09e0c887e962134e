"""A triggerer's wait in a process of its own, to be killed: it takes a trigger's row and waits for its event.

Run as `python -m airflow_gpu_provider.acceptance.waiter`: it says READY, reads the row as JSON from its input, says
WAITING and waits. It gives no event to anybody.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

READY, WAITING = "ready", "waiting"


def main() -> None:
    """Wait until the trigger has an event, or this process is killed."""
    import airflow_gpu_provider.triggers.pod  # noqa: F401 - what it will need; READY means that it is there
    from airflow_gpu_provider.acceptance.tasks import rebuilt

    _say(READY)
    trigger = rebuilt(tuple(json.loads(sys.stdin.readline())))
    asyncio.run(_wait(trigger))


async def _wait(trigger: Any) -> None:
    _say(WAITING)
    async for _ in trigger.run():
        return


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
