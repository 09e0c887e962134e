"""GpuPodTrigger beside its wait: what it leaves when its event is sent."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from airflow_gpu_provider.cluster import informer
from airflow_gpu_provider.cluster.access import ClusterAccess
from airflow_gpu_provider.cluster.async_api import AsyncApi
from airflow_gpu_provider.triggers.pod import GpuPodTrigger
from tests.unit.pods.test_pod_placement import a_pool
from tests.unit.pods.test_pod_wait import WAIT


class Quick(GpuPodTrigger):
    """Its pod has ended as soon as the cluster is reached."""

    async def _event(self, wait: Any) -> dict[str, Any]:
        self._api = await self._connection.enter_async_context(self._connected())
        return {"status": "success", "result": None}

    def _connected(self) -> AbstractAsyncContextManager[AsyncApi]:
        return informer.connected("a cluster", lambda: ClusterAccess(server="http://127.0.0.1:1"))


def test_connection_is_closed_before_the_event_is_sent(caplog: pytest.LogCaptureFixture) -> None:
    """dag.test() takes the event, and ends the loop: it calls no cleanup (InProcessTestSupervisor, airflow.sdk 3.3)."""
    deferred_at = time.time() - 10
    trigger = Quick({"version": 2, "pool": a_pool().serialize(), "wait": WAIT.to_record(), "deferred_at": deferred_at})

    async def first() -> tuple[Any, int]:
        event = await anext(trigger.run(), None)
        return event, len(informer._clusters[asyncio.get_running_loop()])

    with caplog.at_level(logging.DEBUG):
        event, connections = asyncio.run(first())
    assert event.payload["status"] == "success"
    assert connections == 0
    assert "asynchronous generator" not in caplog.text
