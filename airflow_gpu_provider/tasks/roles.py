"""The role of a task in this package, whatever its class is called: subclasses inherit it, mapped tasks have it too."""

from __future__ import annotations

import re
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
    "status",
    "doctor",
    "cluster_autoscaler",
]
"""The attribute `gpu_role` of PoolOperator's subclasses; "" of one that has none, and of other packages' tasks."""

OF_A_BLOCK: tuple[Role, ...] = ("ensure", "training", "scale_down")
"""The roles of tasks that have a pool and a block's name: `gpu_pool` and `block_id`."""


_ROLE = re.compile(r"^GPU \w+: ")


def role_of(task: Any) -> Role:
    """Return the role of a task of a DAG: an operator, or a mapped one, which knows its class."""
    made_of = getattr(task, "operator_class", task)
    role: Role = getattr(made_of, "gpu_role", "")
    return role


def name_with_role(operator: type) -> str:
    """Return the name that Airflow shows of an operator, `custom_operator_name`: "GPU scale_down: TeamScaleDown".

    Airflow keeps it with each task instance, and lists task instances by how it begins, which it does by no attribute
    of a class: so the page in the web UI knows tasks by it, in ui/src/tasks.ts. Behind the role is the name that the
    class or a mixin has given as `custom_operator_name`, else the class's own.
    """
    role = getattr(operator, "gpu_role", "")
    given = getattr(operator, "custom_operator_name", None)
    name = without_role(given) if isinstance(given, str) else operator.__name__
    if any(name == each.__name__ for each in operator.__mro__):
        name = operator.__name__
    return f"GPU {role}: {name}" if role else name


def without_role(name: str) -> str:
    """Return the name that `name_with_role` has put behind the role."""
    return _ROLE.sub("", name)
