"""The role of a task in this package, whatever its class is called: subclasses inherit it, mapped tasks have it too."""

from __future__ import annotations

from typing import Any, Literal

Role = Literal[
    "",
    "ensure",
    "device_plugin",
    "training",
    "scale_down",
    "verdict",
    "delete",
    "extend",
    "reap",
    "report",
    "cluster_autoscaler",
]
"""The attribute `gpu_role` of PoolOperator's subclasses; "" of one that has none, and of other packages' tasks."""

OF_A_BLOCK: tuple[Role, ...] = ("ensure", "training", "scale_down")
"""The roles of tasks that have a pool and a block's name: `gpu_pool` and `block_id`."""


def role_of(task: Any) -> Role:
    """Return the role of a task of a DAG: an operator, or a mapped one, which knows its class."""
    made_of = getattr(task, "operator_class", task)
    role: Role = getattr(made_of, "gpu_role", "")
    return role
