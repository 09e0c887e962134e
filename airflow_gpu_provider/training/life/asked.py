"""Asked: what a try of a task asks for, and which success of an earlier try it collects instead. Pure.

A worker may be killed between the end of a training and the collection of its log and result. Its task's next try then
finds the pod, gang or workload as it ended. A person who clears a task asks for a new training: Airflow then sets
max_tries to the number of the last try plus the task's retries (clear_task_instances in
airflow/models/taskinstance.py, 3.3.2), and changes it nowhere else.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_gpu_provider.cluster.model.pod_state import ATTEMPT_ANNOTATION, OWNER_ANNOTATION, Json
from airflow_gpu_provider.cluster.model.uncollected import UNCOLLECTED
from airflow_gpu_provider.pools.switch import COLLECT_WITHIN

if TYPE_CHECKING:
    from airflow.sdk.types import RuntimeTaskInstanceProtocol

ASKED_ANNOTATION = "airflow-gpu-provider/asked"
"""On what a task creates: a digest of image, command, arguments, environment and GPUs, as its DAG gives them."""

TRY_ANNOTATION = "airflow-gpu-provider/try"
"""On what a task creates: the number that Airflow gives the try."""

_NUMBER = re.compile(r"[0-9]{1,9}")


def digest_of(asked: Mapping[str, object]) -> str:
    """Return a digest of what a DAG gives; empty if that cannot be compared from one process to another."""
    try:
        text = json.dumps(asked, sort_keys=True, default=_comparable)
    except (TypeError, ValueError):
        return ""
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _comparable(value: object) -> object:
    """Return a value that JSON has not as one that it has: the models of Kubernetes' client are dictionaries."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    return str(value)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a try of a task asks for.

    Attributes:
        digest: Of what its DAG gives, before rendering: a templated `ts` does not differ. Empty: nothing is collected.
        try_number: Airflow's number of the try.
        first_try: The number of the first try since the task was last cleared.
        collect_within: How long after its end what it creates holds its node, to be collected.
    """

    digest: str
    try_number: int
    first_try: int
    collect_within: timedelta = COLLECT_WITHIN

    @classmethod
    def of(
        cls, ti: RuntimeTaskInstanceProtocol, *, retries: int, digest: str, collect_within: timedelta = COLLECT_WITHIN
    ) -> Asked:
        return cls(
            digest=digest,
            try_number=ti.try_number,
            first_try=ti.max_tries - retries + 1,
            collect_within=collect_within,
        )

    @property
    def annotations(self) -> dict[str, str]:
        """The annotations of what the try creates, until it is collected and afterwards."""
        return {
            ASKED_ANNOTATION: self.digest,
            TRY_ANNOTATION: str(self.try_number),
            UNCOLLECTED: str(round(self.collect_within.total_seconds())),
        }

    @property
    def has_earlier(self) -> bool:
        """Whether there were tries before this one since the task was last cleared."""
        return bool(self.digest) and self.first_try < self.try_number

    def newest_of_earlier(self, there: Iterable[Json], *, try_id: str) -> Json | None:
        """Return the newest object of an earlier try that asked for the same, and whose end nobody has collected.

        None if this try, whose id is `try_id`, has created one itself. What is being deleted is left out.
        """
        live = [each for each in there if "deletionTimestamp" not in each["metadata"]]
        if not self.has_earlier or any(_notes(each).get(OWNER_ANNOTATION) == try_id for each in live):
            return None
        return max(filter(self._is_same, live), key=_order, default=None)

    def _is_same(self, there: Json) -> bool:
        notes = _notes(there)
        if notes.get(ASKED_ANNOTATION) != self.digest or UNCOLLECTED not in notes:
            return False
        return self.first_try <= _order(there)[0] < self.try_number


def _notes(there: Json) -> Mapping[str, str]:
    return there["metadata"].get("annotations") or {}


def _order(there: Json) -> tuple[int, int]:
    """Return the numbers of its try and of its attempt; 0 for one that somebody has edited."""
    notes = _notes(there)
    number, attempt = (_NUMBER.fullmatch(notes.get(name, "")) for name in (TRY_ANNOTATION, ATTEMPT_ANNOTATION))
    return int(number[0]) if number else 0, int(attempt[0]) if attempt else 0
