"""All the nodes of an agent, with what they share: pods, events, heartbeats, and the kubelet port."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp

from gpu_sandbox.nodes import gpus
from gpu_sandbox.nodes.api import Api
from gpu_sandbox.nodes.cluster_names import ClusterNames
from gpu_sandbox.nodes.errors import ApiError, NodeAgentError
from gpu_sandbox.nodes.events import Events
from gpu_sandbox.nodes.kubelet_server import KubeletServer
from gpu_sandbox.nodes.launcher import Launcher
from gpu_sandbox.nodes.machine import Machine
from gpu_sandbox.nodes.memory import MemoryWatch
from gpu_sandbox.nodes.node import Node
from gpu_sandbox.nodes.pods import Pods
from gpu_sandbox.nodes.spec import Image, NodeSpec

HEARTBEAT_SECONDS = 10.0
OBEY_SECONDS = 120.0
STATUS_EVERY_HEARTBEATS = 6
log = logging.getLogger(__name__)


class NodeSet:
    """The agent's state. Use as an async context manager."""

    def __init__(
        self,
        api: Api,
        zygote: socket.socket,
        *,
        images: Sequence[Image],
        work_dir: Path,
        pulls_by_hand: bool = False,
    ) -> None:
        self._api = api
        self._pulls_by_hand = pulls_by_hand
        self._events = Events(api)
        self._launcher = Launcher(zygote)
        self.machine = Machine(
            api=api,
            events=self._events,
            launcher=self._launcher,
            memory=MemoryWatch(),
            names=ClusterNames(api),
            images=images,
            real_gpus=gpus.of_this_machine(),
            work_dir=work_dir,
        )
        self._nodes: dict[str, Node] = {}
        self._pods = Pods(self.machine, self._nodes)
        self._server = KubeletServer(self._pods, authority=api.access.authority)
        self._plugin_allowed = self._driver_allowed = True
        self._dirty: dict[str, asyncio.Task[None]] = {}
        self.port = 0
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._launcher.lost.add_done_callback(lambda _: self._break())

    async def __aenter__(self) -> NodeSet:
        self.machine.prepare()
        self.port = await self._server.start()
        machine = self.machine
        loops = (
            self._events.run(),
            machine.memory.run(),
            machine.names.run(),
            self._pods.run(),
            self._heartbeats(),
        )
        self._tasks = [asyncio.create_task(loop) for loop in loops]
        for task in self._tasks:
            task.add_done_callback(self._ended)
        return self

    def _ended(self, loop: asyncio.Task[None]) -> None:
        """Break where a loop has ended by itself: nodes that nobody tends would look healthy."""
        if loop.cancelled():
            return
        log.error("%s has ended", loop.get_coro(), exc_info=loop.exception())
        self._break()

    def _break(self) -> None:
        if not self.broken.done():
            self.broken.set_result(None)

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        for name in list(self._nodes):
            await self._pods.abandon_node(name)
        await self._server.stop()
        self._launcher.close()

    async def obey(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        """Carry out a request of the parent's."""
        match operation:
            case "add_node":
                async with asyncio.timeout(OBEY_SECONDS):
                    await self._add(NodeSpec.from_json(arguments["spec"]))
            case "remove_node":
                async with asyncio.timeout(OBEY_SECONDS):
                    await self._remove(arguments["name"], delete_object=arguments["delete_object"])
            case "set_node_labels":
                self._set_labels(arguments["name"], arguments["labels"])
            case "shut_down_node":
                self._shut_down(arguments["name"], arguments["seconds"])
            case "show_gpu_uses":
                self.machine.show_gpu_uses(arguments["uses"])
            case "live" | "set_device_plugin_ready" | "set_driver_ready":
                self._tell_all_nodes(operation, arguments)
            case _:
                raise NodeAgentError(f"unknown request {operation!r}")

    def _tell_all_nodes(self, operation: str, arguments: Mapping[str, Any]) -> None:
        match operation:
            case "live":
                for node in self._nodes.values():
                    node.transfers.live(arguments["seconds"])
            case "set_device_plugin_ready":
                self._plugin_allowed = arguments["ready"]
                for node in self._nodes.values():
                    node.allow_device_plugin(self._plugin_allowed)
            case "set_driver_ready":
                self._driver_allowed = arguments["ready"]
                for node in self._nodes.values():
                    node.allow_driver(self._driver_allowed)

    async def _add(self, spec: NodeSpec) -> None:
        if spec.name in self._nodes:
            raise NodeAgentError(f"there is a node {spec.name} already")
        node = Node(
            spec,
            api=self._api,
            events=self._events,
            real_gpus=self.machine.real_gpus,
            kubelet_port=self.port,
            folder=self.machine.work_dir / "nodes" / spec.name,
            plugin_allowed=self._plugin_allowed,
            driver_allowed=self._driver_allowed,
            status_changed=self._status_changed,
            pulls_by_hand=self._pulls_by_hand,
        )
        # Ours before the API has it: a pod that waits for a node is bound within milliseconds.
        self._nodes[spec.name] = node
        try:
            await node.register()
        except BaseException:
            del self._nodes[spec.name]
            raise
        self._pods.node_added(spec.name)
        self._events.about_node(spec.name, "Normal", "NodeReady", f"Node {spec.name} status is now: NodeReady")

    async def _remove(self, name: str, *, delete_object: bool) -> None:
        node = self._nodes.pop(name, None)
        if node is None:
            return
        await self._pods.abandon_node(name)
        if delete_object:
            await node.unregister()

    def _set_labels(self, name: str, labels: Mapping[str, str]) -> None:
        node = self._nodes.get(name)
        if node is not None:
            node.spec = replace(node.spec, labels=dict(labels))

    def _shut_down(self, name: str, seconds: float) -> None:
        node = self._nodes.get(name)
        if node is not None:
            node.shut_down()
            self._pods.shut_down_node(name, seconds)

    async def _heartbeats(self) -> None:
        beat = 0
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            beat += 1
            nodes = list(self._nodes.values())
            await asyncio.gather(*(self._attempt(node, node.renew_lease()) for node in nodes))
            if beat % STATUS_EVERY_HEARTBEATS == 0:
                await asyncio.gather(*(self._attempt(node, node.report_status()) for node in nodes))

    def _status_changed(self, node: Node) -> None:
        """Write a node's status now; what changes while it is being written is written after it."""
        if self._nodes.get(node.name) is not node:
            return
        before = self._dirty.get(node.name)

        async def write() -> None:
            if before is not None:
                await asyncio.wait([before])
            await self._attempt(node, node.report_status())

        self._dirty[node.name] = asyncio.create_task(write())

    async def _attempt(self, node: Node, request: Any) -> None:
        try:
            await request
        except (ApiError, aiohttp.ClientError, TimeoutError) as error:
            # Its Node may just have been deleted; if the API server is away, the next heartbeat comes.
            log.warning("node %s: %s", node.name, error)
