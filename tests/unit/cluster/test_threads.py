"""Blocking calls in threads: what they raise arrives where they are waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from airflow_gpu_provider.cluster.api.threads import in_thread


@pytest.mark.parametrize(
    ("function", "raises"),
    [
        (lambda: next(iter(())), pytest.raises(RuntimeError, match="raised StopIteration")),
        (lambda: {}["a"], pytest.raises(KeyError)),
    ],
    ids=["StopIteration, which no Future takes", "any other"],
)
def test_error_of_a_call_arrives(function: Callable[[], Any], raises: Any) -> None:
    async def call() -> None:
        await asyncio.wait_for(in_thread(function), timeout=60)

    with raises:
        asyncio.run(call())
