"""What Airflow does with an error of this package: try again, or fail at once.

It is part of the error's type (`retryable`); the operators of this package hand it to Airflow as their default
`retry_policy`. A task with a retry_policy of its own keeps that.
"""

from __future__ import annotations

from airflow.sdk.definitions.retry_policy import ExceptionRetryPolicy, RetryAction, RetryRule

from airflow_gpu_provider import errors


def default_retry_policy() -> ExceptionRetryPolicy:
    """Return a policy that fails at once on errors that another try cannot help."""
    permanent = [cls for cls in errors.error_types() if not cls.retryable]
    rule = RetryRule(exception=[*permanent], action=RetryAction.FAIL, reason="another try cannot help")
    return ExceptionRetryPolicy(rules=[rule])
