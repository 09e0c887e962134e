"""Which failures of a scale-down Airflow tries again: not those that no try survives until a person has acted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk.definitions.retry_policy import ExceptionRetryPolicy, RetryDecision

from airflow_gpu_provider.errors import PoolNotReleased
from airflow_gpu_provider.tasks.pool_operator import DEFAULT_RETRY_POLICY

if TYPE_CHECKING:
    from airflow.sdk import Context


class ReleaseRetryPolicy(ExceptionRetryPolicy):
    """Tries a scale-down again, but not where it has not reached the pool: that alerts at once, not after hours."""

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
    ) -> RetryDecision:
        """Decide by what caused a PoolNotReleased."""
        from airflow_gpu_provider.scaling.wait.retry import NO_ACCESS

        causes = {cls.__name__ for cls in NO_ACCESS}
        if isinstance(exception, PoolNotReleased) and exception.details.get("cause") in causes:
            return RetryDecision.fail("another try cannot reach the pool either")
        return super().evaluate(exception, try_number, max_tries, context)


RELEASE_RETRY_POLICY = ReleaseRetryPolicy(rules=DEFAULT_RETRY_POLICY.rules)
