"""Ownership: whose the pods and objects are that a try of a task creates.

By it a task finds what its own earlier tries have left, and nothing else.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_gpu_provider.cluster.model.pod_state import ATTEMPT_ANNOTATION, OWNER_ANNOTATION
from airflow_gpu_provider.cluster.model.pool_pod import RUN_LABEL, TASK_LABEL
from airflow_gpu_provider.pools.demand_key import DemandKey

if TYPE_CHECKING:
    from airflow.sdk.types import RuntimeTaskInstanceProtocol


@dataclass(frozen=True, kw_only=True)
class Ownership:
    """One try of one task instance of one Airflow installation.

    KubernetesPodOperator's own labels are equal for two installations that run the same DAG in one cluster.

    Attributes:
        iteration: Of the task loop that it is in, from 0; -1 outside of loops.
        try_id: The id that Airflow gives the task instance for one try.
        attempt: The number of the pod within its try: 1 for the first, one more after each preemption.
    """

    key: DemandKey
    task_id: str
    map_index: int
    try_id: str
    iteration: int = -1
    attempt: int = 1

    @classmethod
    def of(cls, ti: RuntimeTaskInstanceProtocol, key: DemandKey, *, iteration: int) -> Ownership:
        map_index = -1 if ti.map_index is None else ti.map_index
        return cls(key=key, task_id=ti.task_id, map_index=map_index, iteration=iteration, try_id=str(ti.id))

    @property
    def task(self) -> str:
        """The value of TASK_LABEL."""
        indexes = (self.map_index,) if self.iteration < 0 else (self.map_index, self.iteration)
        parts = [self.key.installation, self.key.dag_id, self.key.run_id, self.task_id, *indexes]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:20]

    @property
    def selector(self) -> str:
        """Selects the pods of all tries."""
        return f"{TASK_LABEL}={self.task}"

    @property
    def labels(self) -> dict[str, str]:
        return {RUN_LABEL: self.key.hash, TASK_LABEL: self.task}

    @property
    def annotations(self) -> dict[str, str]:
        return {
            **self.key.annotations,
            OWNER_ANNOTATION: self.try_id,
            ATTEMPT_ANNOTATION: str(self.attempt),
        }

    @property
    def writer(self) -> str:
        """The writer of the pool's groups, as the platforms record it."""
        return self.key.writer
