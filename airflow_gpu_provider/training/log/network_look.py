"""NetworkLook: tells once that a gang trains over TCP on machines that have a faster network. Never an error."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from airflow_gpu_provider.cluster.async_api import AsyncApi
from airflow_gpu_provider.cluster.nodes import INSTANCE_TYPE_LABEL
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.training.log.kept_lines import Log
from airflow_gpu_provider.training.wait.nccl_network import is_on_sockets, on_sockets_in_words

_ANSWERED_WITHIN = 5.0


class NetworkLook:
    """Reads the type of one node, when the first line says that NCCL uses sockets.

    Args:
        api: The cluster.
        log: The task's log.
        warning: What was logged already, by who followed the log before.

    Attributes:
        warning: What was logged; empty if there was nothing to warn of.
    """

    def __init__(self, api: AsyncApi, log: Log, warning: str) -> None:
        self._api = api
        self._log = log
        self._judging: asyncio.Task[None] | None = None
        self.warning = warning

    def hear(self, line: str, node: str) -> None:
        """Take a line that a rank on that node has printed."""
        if self._judging is None and not self.warning and node and is_on_sockets(line):
            self._judging = asyncio.create_task(self._judge(node))

    async def end(self) -> None:
        """Wait for a judgement that is under way."""
        if self._judging is not None:
            await asyncio.wait({self._judging}, timeout=_ANSWERED_WITHIN)
            self._judging.cancel()

    async def _judge(self, node: str) -> None:
        with suppress(GpuError):
            raw = await self._api.get(f"api/v1/nodes/{node}") or {}
            labels = raw.get("metadata", {}).get("labels") or {}
            if warning := on_sockets_in_words(labels.get(INSTANCE_TYPE_LABEL, "")):
                self.warning = warning
                self._log(logging.WARNING, "%s", warning)
