"""Which `gpu_nodes` blocks are open while a DAG file is read: an operator in one takes its pool from there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_gpu_provider.pools import GpuPool


@dataclass(frozen=True)
class Block:
    """A block of a DAG: its pool, and the name of its demand among those of a run."""

    pool: GpuPool
    block_id: str


_open: ContextVar[tuple[Block, ...]] = ContextVar("gpu_nodes_blocks", default=())


@contextmanager
def opened(block: Block) -> Iterator[None]:
    """Open a block for what is constructed within."""
    token = _open.set((*_open.get(), block))
    try:
        yield
    finally:
        _open.reset(token)


def current_pool() -> GpuPool | None:
    """Return the pool of the innermost `gpu_nodes` block that is open, or None."""
    return _open.get()[-1].pool if _open.get() else None


def block_of(gpu_pool: GpuPool) -> str:
    """Return the block_id of the innermost `gpu_nodes` block of this pool that is open; empty outside of any."""
    return next((each.block_id for each in reversed(_open.get()) if each.pool.name == gpu_pool.name), "")
