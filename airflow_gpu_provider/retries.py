"""What Airflow does with an error of this package: try again, or fail at once.

It is part of the error's type (`retryable`); the operators of this package hand it to Airflow as their default
`retry_policy`. A task with a retry_policy of its own keeps that.
"""

from __future__ import annotations

from airflow.sdk.definitions.retry_policy import ExceptionRetryPolicy, RetryAction, RetryRule

from airflow_gpu_provider import errors


def _fail_at_once_where_it_cannot_help() -> ExceptionRetryPolicy:
    permanent = [cls for cls in errors.error_types() if not cls.retryable]
    rule = RetryRule(exception=[*permanent], action=RetryAction.FAIL, reason="another try cannot help")
    return ExceptionRetryPolicy(rules=[rule])


DEFAULT_RETRY_POLICY = _fail_at_once_where_it_cannot_help()
"""Fails at once on errors that another try cannot help."""
