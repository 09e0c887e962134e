"""How many nodes EnsureGpuPoolOperator brings up, and how many of them in one zone, by its arguments."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.values import is_template, is_whole


@dataclass(frozen=True)
class NodeCounts:
    """How many nodes an EnsureGpuPoolOperator's arguments ask for; templates are rendered, or unknown."""

    pool: GpuPool
    _: KW_ONLY
    gpus: Any
    nodes: Any
    at_least: Any
    gang: Any

    @property
    def of_one_zone(self) -> int:
        """How many of the nodes must be in one zone; 0 if each may be anywhere."""
        gang = int(self.gang)
        return gang if gang > 1 else 0

    def check_if_known(self) -> None:
        """Check what is known when the DAG is parsed; raises PoolSpecError like `wanted` and `fewest`."""
        given = [value for value in (self.gpus, self.nodes, self.at_least, self.gang) if value is not None]
        if all(map(is_whole, given)):
            self.fewest()
        else:
            self._check_numbers()

    def wanted(self) -> int:
        """Return how many nodes the run wants; 0 only where `nodes` is 0.

        Raises:
            PoolSpecError: The pool cannot have that many, or they cannot hold the gang.
        """
        self._check_numbers()
        gang, most = self.of_one_zone, self.pool.max_nodes
        if gang > most:
            raise self._error(
                f"a task wants {gang} nodes at once, and max_nodes={most}",
                "Raise the pool's max_nodes, or lower the task's nodes: of a workload, its manifest's number of pods.",
            )
        nodes = None if self.nodes is None else int(self.nodes)
        gpus = None if self.gpus is None else int(self.gpus)
        if nodes is None and gpus is None:
            return max(self.pool.nodes_for(gpus=1, nodes=None), gang)
        wanted = 0 if nodes == 0 and gpus is None else self.pool.nodes_for(gpus=gpus, nodes=nodes)
        if wanted < gang:
            raise self._error(
                f"a task wants {gang} nodes at once, and EnsureGpuPoolOperator brings {wanted}",
                f"Give nodes={gang}, or as many GPUs as so many nodes have; without both it brings {gang} by itself.",
            )
        return wanted

    def fewest(self) -> int | None:
        """Return how few nodes suffice, if fewer than wanted are allowed.

        Raises:
            PoolSpecError: They are more than wanted, or a gang needs all of its nodes.
        """
        wanted = self.wanted()
        if self.at_least is None:
            return None
        if self.of_one_zone:
            raise self._error(
                f"at_least={self.at_least}, and a task wants {self.gang} nodes at once",
                "Leave at_least out: with fewer nodes that task would not run.",
            )
        at_least, counts_nodes = int(self.at_least), self.nodes is not None
        few = self.pool.nodes_for(gpus=None if counts_nodes else at_least, nodes=at_least if counts_nodes else None)
        if few > wanted:
            raise self._error(
                f"at_least={at_least} is {few} nodes; {wanted} are wanted",
                "It counts what the other argument counts: GPUs, or nodes where nodes= is given.",
            )
        return few

    def _check_numbers(self) -> None:
        for name in ("gpus", "nodes", "at_least", "gang"):
            if _is_no_count(value := getattr(self, name)):
                raise self._error(f"{name}={value!r}", "Use a whole number.")

    def _error(self, what: str, fix: str) -> PoolSpecError:
        return PoolSpecError(f"Pool {self.pool.name}: {what}.", fix, pool=self.pool.name)


def _is_no_count(value: Any) -> bool:
    """Return True for a value that is neither a whole number nor a future one: a template, or another task's result."""
    is_known = isinstance(value, float | bool) or (isinstance(value, str) and not is_template(value))
    return is_known and not is_whole(value)
