"""The node agent's process: any number of Nodes, their pods, one HTTPS port, told what to do on its stdin.

Started by handle.NodeAgent. It speaks JSON lines: requests on stdin, answers (and first of all {"ready": ...}) on
stdout, its log on stderr. It ends when its stdin or its parent does, and all that it started ends with it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_sandbox.nodes.errors import NamespacesForbidden
from gpu_sandbox.nodes.launcher import fork_zygote

_ENDS_WITHIN = 60.0  # seconds; whoever stops it in order has less patience


def main(argv: Sequence[str]) -> int:
    """Run the agent until its parent lets go of it; returns the exit code."""
    parser = argparse.ArgumentParser(prog="node-agent")
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--work-dir", type=Path, required=True)
    parser.add_argument("--images", required=True, help="JSON list of images")
    parser.add_argument("--pulls-by-hand", action="store_true", help="pulls go on when the parent says so")
    arguments = parser.parse_args(argv)
    # Ignored by whoever started us in the background, they would be ignored in every container too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        # Before anything else is imported or started: the zygote is a copy of this process.
        zygote, in_user_namespace = fork_zygote()
    except NamespacesForbidden as error:
        _say({"failed": {"type": "NamespacesForbidden", "message": error.cause}})
        return 1
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if in_user_namespace:
        logging.getLogger(__name__).info("not privileged: pods run in a user namespace, all as one user")
    asyncio.run(_serve(arguments, zygote))
    return 0


def _say(message: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


async def _serve(arguments: argparse.Namespace, zygote: socket.socket) -> None:
    from gpu_sandbox.nodes.api import Api, read_kubeconfig
    from gpu_sandbox.nodes.node_set import NodeSet
    from gpu_sandbox.nodes.spec import Image

    loop = asyncio.get_running_loop()
    over = loop.create_future()

    parent = os.pidfd_open(os.getppid())

    def end(*_: object) -> None:
        loop.remove_reader(parent)  # it stays readable, and the loop would spin for as long as the end takes
        if not over.done():
            over.set_result(None)

    loop.add_signal_handler(signal.SIGTERM, end)
    loop.add_reader(parent, end)
    reader = asyncio.StreamReader(limit=2**24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    images = [Image.from_json(item) for item in json.loads(arguments.images)]
    async with (
        Api(read_kubeconfig(arguments.kubeconfig)) as api,
        NodeSet(
            api, zygote, images=images, work_dir=arguments.work_dir, pulls_by_hand=arguments.pulls_by_hand
        ) as nodes,
    ):
        _say({"ready": {"port": nodes.port, "real_gpus": len(nodes.machine.real_gpus)}})
        commands = asyncio.create_task(_obey(reader, nodes))
        await asyncio.wait([over, commands, nodes.broken], return_when=asyncio.FIRST_COMPLETED)
        commands.cancel()
        # Where the parent is gone nobody else ends it: a reader of logs, say, may hold its server open.
        loop.call_later(_ENDS_WITHIN, os._exit, 1)


async def _obey(reader: asyncio.StreamReader, nodes: Any) -> None:
    """Carry requests out, side by side, until stdin ends."""
    running: set[asyncio.Task[None]] = set()
    while line := await reader.readline():
        task = asyncio.create_task(_answer(json.loads(line), nodes))
        running.add(task)
        task.add_done_callback(running.discard)


async def _answer(request: Mapping[str, Any], nodes: Any) -> None:
    try:
        result = await nodes.obey(request["op"], request["arguments"])
    except Exception as error:
        logging.getLogger(__name__).exception("%s failed", request["op"])
        _say({"id": request["id"], "error": {"type": type(error).__name__, "message": str(error)}})
    else:
        _say({"id": request["id"], "result": result})


if __name__ == "__main__":
    # The zygote and all containers are gone when this process is: nothing is left to wait for.
    raise SystemExit(main(sys.argv[1:]))
