"""A small JSON-over-HTTP server on a free loopback port, in threads of its own."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True, kw_only=True)
class Request:
    method: str
    path: str
    bearer_token: str
    body: Any


@dataclass(frozen=True, kw_only=True)
class Reply:
    body: Any = field(default_factory=dict)
    status: HTTPStatus = HTTPStatus.OK


class LoopbackServer:
    """Answers every request by `answer`, which runs in a thread per connection and may raise nothing."""

    def __init__(self, answer: Callable[[Request], Reply], *, name: str) -> None:
        class Handler(_Handler):
            def answer(self, request: Request) -> Reply:
                return answer(request)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        # A kept-alive connection must not keep stop() waiting.
        self._server.block_on_close = False
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name=name, daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Headers and body in one write: in two, Nagle's algorithm and delayed ACKs add 40 ms to each call.
    wbufsize = -1
    timeout = 60

    def answer(self, request: Request) -> Reply:
        raise NotImplementedError

    def _handle(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            body = json.loads(content) if content else None
        except ValueError as error:
            reply = Reply(status=HTTPStatus.BAD_REQUEST, body={"error": f"the body is not JSON: {error}"})
        else:
            reply = self.answer(
                Request(
                    method=self.command,
                    path=urlsplit(self.path).path,
                    bearer_token=self.headers.get("Authorization", "").removeprefix("Bearer "),
                    body=body,
                )
            )
        payload = json.dumps(reply.body).encode()
        self.send_response(reply.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)
        self.wfile.flush()

    do_GET = do_POST = do_DELETE = _handle

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the callers say what happened."""
