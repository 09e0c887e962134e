"""DemandKey: which run, or block of a run, wants nodes; Leases, pods and Jobs carry it in their annotations."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from airflow_gpu_provider.untrusted import one_line

_PREFIX = "airflow-gpu-provider/"


@dataclass(frozen=True, kw_only=True)
class DemandKey:
    """The owner of demand for a pool: one DAG run of one Airflow installation, or one block of that run.

    Attributes:
        block: The `gpu_nodes` block, told from the run's others on the same pool, which come and go by themselves;
            empty for what is chained by hand. Of demand that is one task's own, see `of_task`, that task too.
    """

    installation: str
    dag_id: str
    run_id: str
    pool: str
    block: str = ""

    @cached_property
    def hash(self) -> str:
        """A short name that is valid in labels and object names, as run ids are not."""
        parts = [self.installation, self.dag_id, self.run_id, self.pool, *([self.block] if self.block else [])]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:20]

    def of_task(self, task_id: str, map_index: int, iteration: int = -1) -> Self:
        """Return the key of a task's own demand: of a gang, say, that no block's demand covers.

        `iteration` is that of the task loop that it is in; -1 outside of loops.
        """
        index = f"{map_index}.{iteration}" if iteration >= 0 else f"{map_index}"
        return replace(self, block=f"{self.block}/{task_id}/{index}".lstrip("/"))

    @property
    def is_of_task(self) -> bool:
        """Whether it is a task's own. No id of Airflow's has a slash."""
        return "/" in self.block

    @property
    def block_id(self) -> str:
        """The block's name; of a task's own demand that of the block that the task is in, empty for none."""
        return "/".join(self.block.split("/")[:-2]) if self.is_of_task else self.block

    @property
    def writer(self) -> str:
        """The DAG of its installation: the writer of a pool's groups, as the platforms record it."""
        return f"{self.installation}/{self.dag_id}"

    @property
    def lease_name(self) -> str:
        return f"demand-{self.hash}"

    @property
    def annotations(self) -> dict[str, str]:
        """What an object of the run says of it, for a hash tells nobody which run that was."""
        return {
            f"{_PREFIX}installation": self.installation,
            f"{_PREFIX}dag-id": self.dag_id,
            f"{_PREFIX}run-id": self.run_id,
            **({f"{_PREFIX}block": self.block} if self.block else {}),
        }

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> Self:
        """Read it from an object's annotations and its pool's label; raises KeyError where they are not there."""
        notes = raw["metadata"]["annotations"]
        return cls(
            installation=notes[f"{_PREFIX}installation"],
            dag_id=notes[f"{_PREFIX}dag-id"],
            run_id=notes[f"{_PREFIX}run-id"],
            pool=raw["metadata"]["labels"][POOL_LABEL],
            block=notes.get(f"{_PREFIX}block", ""),
        )

    def __str__(self) -> str:
        return one_line(f"{self.dag_id}/{self.run_id}" + (f"/{self.block}" if self.block else ""))
