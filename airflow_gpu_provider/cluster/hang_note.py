"""HangNote: that a training may hang, as an annotation of one of its pods tells it to who reads the pool."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from airflow_gpu_provider.cluster.clock import format_time

HANG = "airflow-gpu-provider/hang"
"""The annotation: on one running pod of a training, for as long as it may hang."""


@dataclass(frozen=True, kw_only=True)
class HangNote:
    """What shows it, for how many pods, which all do the same, and since when."""

    since: datetime
    pods: int
    shown_by: str

    def dump(self) -> str:
        return json.dumps({"since": format_time(self.since), "pods": self.pods, "shown_by": self.shown_by})

    @classmethod
    def of(cls, annotations: Mapping[str, str]) -> Self | None:
        """Read it from a pod's annotations; None where there is none, or one that somebody has edited."""
        try:
            record = json.loads(annotations[HANG])
            since = datetime.fromisoformat(record["since"])
            return cls(since=since, pods=int(record["pods"]), shown_by=str(record["shown_by"]))
        except (KeyError, TypeError, ValueError):
            return None
