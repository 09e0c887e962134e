"""PoolOperator: what the package's operators do with Airflow's own arguments.

Airflow gives the values of default_args to the *named* parameters of each class's `__init__`, on the way up: a default
that an operator sets in its **kwargs would win over them. So what has a default of its own here is a named parameter.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from airflow.sdk import BaseOperator

from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.pools.base import GpuPool
from airflow_gpu_provider.retries import DEFAULT_RETRY_POLICY

if TYPE_CHECKING:
    from airflow.sdk.definitions.retry_policy import RetryPolicy


class PoolOperator(BaseOperator):
    """Base of the package's operators.

    Args:
        retry_policy: Default: fail at once on errors that another try cannot help. One of your own replaces it, None
            too.
        pool: Airflow's slot pool.

    Raises:
        PoolSpecError: `pool` is a GPU pool.
    """

    _keywords: frozenset[str] = frozenset()

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        # Here, and not in __init__, it is known what was given by keyword and what comes from default_args.
        self = super().__new__(cls)
        object.__setattr__(self, "_keywords", frozenset(kwargs))
        return self

    def __init__(
        self, *, retry_policy: RetryPolicy | None = DEFAULT_RETRY_POLICY, pool: str | None = None, **kwargs: Any
    ) -> None:
        if isinstance(pool, GpuPool):
            raise PoolSpecError("pool= was given a GPU pool.", "Give it as gpu_pool=; pool= is Airflow's slot pool.")
        super().__init__(retry_policy=retry_policy, pool=pool, **kwargs)

    def _by_keyword(self, name: str, value: Any, otherwise: Any) -> Any:
        """Return the value of an argument that is not for default_args: there, its name means another operator's."""
        return value if name in self._keywords else otherwise


def duration(name: str, value: float | timedelta) -> timedelta:
    """Return a time that is given as Airflow's sensors take it: in seconds, or as a timedelta.

    Raises:
        PoolSpecError: It is neither, or negative.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = timedelta(seconds=value)
    if not isinstance(value, timedelta) or value < timedelta():
        raise PoolSpecError(f"{name}={value!r}.", "It is a timedelta, or a number of seconds.")
    return value
