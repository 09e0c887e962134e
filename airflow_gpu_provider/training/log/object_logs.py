"""ObjectLogs: the logs of all pods of one object, streamed into the log of the task that waits for it.

One annotation of the object keeps how far they are written, by pod name: one write for all pods.

NetworkLook tells once that a gang trains over TCP on machines that have a faster network; it is never an error. NCCL
prints the lines that it goes by at NCCL_DEBUG=INFO: src/init.cc ("Using network %s") and src/transport/net.cc ("via
NET/%s").
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from airflow_gpu_provider.clouds.kubernetes.machine_types import fast_network
from airflow_gpu_provider.cluster.api.async_api import AsyncApi
from airflow_gpu_provider.cluster.model.node import INSTANCE_TYPE_LABEL
from airflow_gpu_provider.cluster.model.pod_log import POSITIONS
from airflow_gpu_provider.cluster.model.pod_state import Json, PodState
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.training.log.followed_log import PodLogs, WriteLine
from airflow_gpu_provider.training.log.trigger_log import Log, PositionSaver
from airflow_gpu_provider.training.wait.attempt_wait import Silence
from airflow_gpu_provider.training.wait.gang_wait import GangWait
from airflow_gpu_provider.training.wait.gpu_use import Rank
from airflow_gpu_provider.training.wait.object_wait import rank_in_words
from airflow_gpu_provider.training.wait.workload_wait import WorkloadWait

if TYPE_CHECKING:
    from airflow_gpu_provider.training.log.task_log import TaskLog


def shown_as(container: str, *, rank: Rank, base: str) -> str:
    """Return what a rank's container is called in the task's log."""
    return rank_in_words(rank) if container == base else f"{rank_in_words(rank)} {container}"


EACH = ["*"]
"""In place of the names of the containers whose lines are wanted: all of each pod's."""


class ObjectLogs:
    """The streams of an object's pods. Use it as PodLogs is used.

    Where silence counts as a hang, pods whose lines are not wanted are followed too: their output is a sign of life.

    Args:
        wanted: As PodLogs has it, "containers" also EACH, "positions" by the names of the pods; and "ranks", of which
            lines are wanted; None: all.
        task_log: In a worker: how lines are written.
    """

    def __init__(
        self,
        api: AsyncApi,
        wait: GangWait | WorkloadWait,
        wanted: Mapping[str, Any] | None,
        log: Log,
        task_log: TaskLog | None = None,
    ) -> None:
        self._api = api
        self._wait = wait
        self._wanted = dict(wanted or {})
        self._ranks: Collection[Rank] | None = self._wanted.get("ranks")
        self._log = log
        self._task_log = task_log
        self._kept: dict[str, Any] = dict(self._wanted.get("positions") or {})
        self._may_repeat = bool(self._wanted.get("may_repeat"))
        self._pods: dict[str, PodLogs] = {}
        self._nodes: dict[Rank, str] = {}
        self._network = NetworkLook(api, log, self._wanted.get("network") or "")
        self._ranks_of: dict[str, Rank] = {}  # by the pods' names
        self._begun_at = time.monotonic()
        report = partial(log, 20, "%s")
        self._saver = PositionSaver(api, wait.path, wait.uid, self._positions, report)

    async def __aenter__(self) -> Self:
        if self._task_log is None and self._wanted.get("containers") and not self._wanted.get("from_start"):
            await self._take_positions()
        self._saver.safe = dict(self._kept)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._saver.stop()
        for logs in self._pods.values():
            await logs.__aexit__(*error)
        await self._network.end()

    def follow(self, pod: PodState, raw: Json, rank: Rank) -> None:
        is_wanted = self._ranks is None or rank in self._ranks
        if not is_wanted and self._wait.hang_seconds is None:
            return
        self._nodes[rank] = pod.node or ""
        if pod.name not in self._pods:
            self._ranks_of[pod.name] = rank
            self._pods[pod.name] = self._begun(rank, pod, raw)
        self._pods[pod.name].follow(pod, raw)

    async def drain(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        await asyncio.gather(*(logs.drain(max(0.0, until - time.monotonic())) for logs in self._pods.values()))

    @property
    def is_whole(self) -> bool:
        """Whether every started container is followed; others have to be read before their pod is ended."""
        return bool(self._wanted.get("containers")) and all(logs.is_whole for logs in self._pods.values())

    def silence(self) -> Silence | None:
        """Return for how long no rank has printed anything; None if not all ranks are followed."""
        if not self.is_whole:
            return None
        heard_at = max((logs.heard_at for logs in self._pods.values()), default=self._begun_at)
        last_lines = {self._ranks_of[name]: logs.last_line for name, logs in self._pods.items() if logs.last_line}
        return Silence(lasts=timedelta(seconds=time.monotonic() - heard_at), last_lines=last_lines)

    def rest(self) -> dict[str, Any]:
        """Return what the operator needs to continue, as PodLogs.rest does; "positions" by the names of the pods.

        "network" is the warning about a gang's network: see NetworkLook.
        """
        rests = [logs.rest() for logs in self._pods.values()]
        may_repeat = any(rest["may_repeat"] for rest in rests) if rests else self._may_repeat
        network = {"network": self._network.warning} if self._network.warning else {}
        return {"positions": self._positions(), "may_repeat": may_repeat, **network}

    async def safe_rest(self) -> dict[str, Any]:
        return await self._saver.handed_on(self.rest())

    def _begun(self, rank: Rank, pod: PodState, raw: Json) -> PodLogs:
        title = partial(shown_as, rank=rank, base=self._wait.main_container(raw))
        containers = self._wanted.get("containers")
        if containers == EACH:
            containers = [each["name"] for each in raw["spec"]["containers"]]
        kept = {"positions": self._kept.get(pod.name) or {}, "may_repeat": self._may_repeat}
        return PodLogs(
            self._api,
            pod,
            {**self._wanted, "containers": containers, **kept},
            self._log,
            write=self._writer(rank, title),
            on_line=partial(self._hear, rank) if isinstance(self._wait, GangWait) else None,
            alone=self._task_log is not None,
            shown_as=title,
            saver=self._saver,
        )

    def _writer(self, rank: Rank, title: Callable[[str], str]) -> WriteLine | None:
        if self._ranks is not None and rank not in self._ranks:
            return lambda container, text, at: None
        return replace(self._task_log, shown_as=title).write_line if self._task_log else None

    def _hear(self, rank: Rank, text: str) -> None:
        self._network.hear(text, self._nodes[rank])

    def _positions(self) -> dict[str, Any]:
        return self._kept | {name: logs.rest()["positions"] for name, logs in self._pods.items()}

    async def _take_positions(self) -> None:
        """Continue from the positions that an earlier triggerer last recorded."""
        try:
            there = await self._api.get(self._wait.path)
            annotation = ((there or {}).get("metadata", {}).get("annotations") or {}).get(POSITIONS)
            kept = json.loads(annotation) if annotation else {}
        except (GpuError, ValueError):
            return
        for name, positions in kept.items():
            self._kept[name] = _newer(self._kept.get(name) or {}, positions)
        self._may_repeat = self._may_repeat or bool(kept)


def _newer(known: Mapping[str, list[int]], kept: Mapping[str, list[int]]) -> dict[str, list[int]]:
    """Return for each container the position whose newest line, its last number, is later."""
    newer = {name: position for name, position in kept.items() if name not in known or position[-1] > known[name][-1]}
    return {**known, **newer}


Logs = PodLogs | ObjectLogs


_ANSWERED_WITHIN = 5.0

_ON_SOCKETS = re.compile(r"NCCL INFO (?:Using network Socket\b|Channel \S{1,20} .{0,200} via NET/Socket)")


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


def is_on_sockets(line: str) -> bool:
    """Return True for the line by which NCCL says that it goes over TCP."""
    return "NCCL INFO" in line and _ON_SOCKETS.search(line) is not None


def on_sockets_in_words(instance_type: str) -> str:
    """Return what to tell about a gang whose NCCL goes over TCP; empty where its machines have nothing better."""
    faster = fast_network(instance_type)
    if not faster:
        return ""
    return (
        f"NCCL uses NET/Socket, which is TCP over one network interface, and {instance_type} has {faster}: the GPUs"
        " wait for the network, and look busy. docs/multi-node.md says what it takes to use it."
    )
