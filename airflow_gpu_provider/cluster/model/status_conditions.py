"""Conditions: what a controller says in the status of an object of its own."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from airflow_gpu_provider.cluster.model.pod_state import Json
from airflow_gpu_provider.times import parse_time
from airflow_gpu_provider.untrusted import plain


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One condition, in the API's words."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    since: datetime | None = None

    @property
    def is_true(self) -> bool:
        return self.status == "True"

    @property
    def is_awaited(self) -> bool:
        """Whether nothing has been found out yet: it was set when the object was made (operatorpkg, status)."""
        return self.reason == "AwaitingReconciliation"

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.reason, self.message))) or f"{self.type} is {self.status}"


def conditions_of(raw: Json) -> dict[str, Condition]:
    """Return the conditions of an object as the API server sends it, by type."""
    return {
        each["type"]: Condition(
            type=each["type"],
            status=each["status"],
            reason=plain(each.get("reason") or ""),
            message=plain(each.get("message") or ""),
            since=parse_time(each.get("lastTransitionTime")),
        )
        for each in (raw.get("status") or {}).get("conditions") or ()
    }
