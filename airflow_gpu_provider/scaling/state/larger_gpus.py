"""LargerGpu: a task of a run whose next try needs a larger GPU, as an annotation of the run's demand Lease has it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass


@dataclass(frozen=True, kw_only=True)
class LargerGpu:
    """Nodes among a run's that are for one task, which has run out of GPU memory, and so have to be of one type.

    Attributes:
        task_id, map_index: The task's.
        instance_type: The nodes' machine type.
        nodes: How many; a gang's are all of it.
        times: How often the task has got a larger one.
    """

    task_id: str
    map_index: int
    instance_type: str
    nodes: int = 1
    times: int = 1


def dump(found: Iterable[LargerGpu]) -> str:
    """Return the annotation."""
    return json.dumps([asdict(each) for each in found])


def parse(text: str) -> tuple[LargerGpu, ...]:
    """Read the annotation; raises TypeError or ValueError where it is none."""
    found = tuple(LargerGpu(**each) for each in json.loads(text))
    for each in found:
        names = (each.task_id, each.instance_type)
        if not all(isinstance(name, str) and name for name in names) or each.nodes < 1 or each.times < 1:
            raise ValueError(f"{each} is no task with a larger GPU")
    return found
