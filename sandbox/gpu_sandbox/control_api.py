"""The running sandbox's control API, for the CLI and for other processes: JSON over HTTP on loopback, with a token.

GET  /status              what `Sandbox.describe` says
GET  /env                 what `Sandbox.env` says
GET  /faults              what `Faults.describe` says
POST /faults              changes, in the same form; what is left out stays
DELETE /faults            end all faults
POST /restart-apiserver   {"down_seconds": 0}; answers when the API server is ready again
POST /hang-apiserver      {"seconds": 0}; answers when it goes on
POST /cut-connections     answers {"connections": how many}
POST /interrupt-spot      {"instance", "node", "zone"}, each may be left out; answers {"instances": [...]}
POST /recommend-rebalance the same
POST /upgrade-nodes       {"group"}; answers {"began": whether the cloud upgrades it}
POST /advance             {"seconds"}: lets so much time pass, with a manual clock; answers when that is done
POST /down                ask for the end; answers at once
"""

from __future__ import annotations

import hmac
import json
import logging
import secrets
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Protocol

from gpu_sandbox.errors import ControlApiError, SandboxError
from gpu_sandbox.faults import Faults
from gpu_sandbox.loopback import LoopbackServer, Reply, Request

# Long enough for a restart of the API server; a longer `down_seconds` is added to it.
TIMEOUT = 120.0

_log = logging.getLogger(__name__)


class Controlled(Protocol):
    """What the API needs of a sandbox."""

    @property
    def faults(self) -> Faults: ...
    def describe(self) -> dict[str, Any]: ...
    def env(self) -> dict[str, str]: ...
    def advance(self, seconds: float) -> None: ...
    def restart_apiserver(self, down_seconds: float) -> None: ...
    def hang_apiserver(self, seconds: float) -> None: ...
    def cut_connections(self) -> int: ...
    def interrupt_spot(self, *, instance: str | None, node: str | None, zone: str | None) -> list[str]: ...
    def recommend_rebalance(self, *, instance: str | None, node: str | None, zone: str | None) -> list[str]: ...
    def upgrade_nodes(self, group: str) -> bool: ...


class ControlApi:
    """Serves one sandbox. `down_requested` is set once somebody asked for its end; the owner waits for it."""

    def __init__(self, sandbox: Controlled) -> None:
        self.token = secrets.token_urlsafe(32)
        self.down_requested = threading.Event()
        self._sandbox = sandbox
        self._routes: dict[tuple[str, str], Callable[[Any], Any]] = {
            ("GET", "/status"): lambda body: sandbox.describe(),
            ("GET", "/env"): lambda body: sandbox.env(),
            ("GET", "/faults"): lambda body: sandbox.faults.describe(),
            ("POST", "/faults"): self._apply_faults,
            ("DELETE", "/faults"): self._clear_faults,
            ("POST", "/restart-apiserver"): self._restart_apiserver,
            ("POST", "/hang-apiserver"): self._hang_apiserver,
            ("POST", "/cut-connections"): lambda body: {"connections": sandbox.cut_connections()},
            ("POST", "/interrupt-spot"): lambda body: _on_spot(sandbox.interrupt_spot, body),
            ("POST", "/recommend-rebalance"): lambda body: _on_spot(sandbox.recommend_rebalance, body),
            ("POST", "/upgrade-nodes"): lambda body: {"began": sandbox.upgrade_nodes(str((body or {}).get("group")))},
            ("POST", "/advance"): self._advance,
            ("POST", "/down"): self._down,
        }
        self._server = LoopbackServer(self._answer, name="sandbox-control-api")
        self.url = self._server.url

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        self._server.stop()

    def _answer(self, request: Request) -> Reply:
        if not hmac.compare_digest(request.bearer_token.encode(), self.token.encode()):
            return Reply(status=HTTPStatus.UNAUTHORIZED, body={"error": "wrong or missing bearer token"})
        route = self._routes.get((request.method, request.path))
        if route is None:
            return Reply(status=HTTPStatus.NOT_FOUND, body={"error": f"no {request.method} {request.path}"})
        try:
            return Reply(body=route(request.body))
        except (ValueError, TypeError) as error:
            return Reply(status=HTTPStatus.BAD_REQUEST, body={"error": str(error)})
        except SandboxError as error:
            return Reply(status=HTTPStatus.CONFLICT, body={"error": str(error)})
        except Exception as error:  # noqa: BLE001 - the caller must get an answer, whatever it is
            _log.exception("%s %s failed", request.method, request.path)
            return Reply(status=HTTPStatus.INTERNAL_SERVER_ERROR, body={"error": repr(error)})

    def _apply_faults(self, changes: Any) -> dict[str, Any]:
        if not isinstance(changes, Mapping):
            raise ValueError("faults are changed by an object, as GET /faults shows it")
        self._sandbox.faults.apply(changes)
        return self._sandbox.faults.describe()

    def _clear_faults(self, body: Any) -> dict[str, Any]:
        self._sandbox.faults.clear()
        return self._sandbox.faults.describe()

    def _restart_apiserver(self, body: Any) -> dict[str, Any]:
        self._sandbox.restart_apiserver(_seconds(body, "down_seconds"))
        return {}

    def _hang_apiserver(self, body: Any) -> dict[str, Any]:
        self._sandbox.hang_apiserver(_seconds(body, "seconds"))
        return {}

    def _advance(self, body: Any) -> dict[str, Any]:
        self._sandbox.advance(_seconds(body, "seconds"))
        return {}

    def _down(self, body: Any) -> dict[str, Any]:
        self.down_requested.set()
        return {}


def _seconds(body: Any, name: str) -> float:
    seconds = float((body or {}).get(name, 0.0))
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"{name} is a number of seconds, at least 0; not {seconds!r}")
    return seconds


def _on_spot(act: Callable[..., list[str]], body: Any) -> dict[str, list[str]]:
    where = dict(body or {})
    if unknown := where.keys() - {"instance", "node", "zone"}:
        raise ValueError(f"spot instances are named by instance, node and zone; not by {sorted(unknown)}")
    return {"instances": act(instance=where.get("instance"), node=where.get("node"), zone=where.get("zone"))}


class ControlApiClient:
    """Calls a running sandbox, from any process."""

    def __init__(self, *, url: str, token: str) -> None:
        self._url = url
        self._token = token
        # Never through a proxy: it is this machine.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def call(self, method: str, path: str, body: Any = None, *, may_take: float = 0.0) -> Any:
        """The decoded reply. ControlApiError if it was refused, or if nobody answers (in 120 s + `may_take`)."""
        request = urllib.request.Request(
            self._url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"},
        )
        try:
            with self._opener.open(request, timeout=TIMEOUT + may_take) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as error:
            with error:
                reason = json.load(error).get("error", error.reason)
            raise ControlApiError(str(reason)) from error
        except OSError as error:
            raise ControlApiError(f"the sandbox at {self._url} does not answer: {error}") from error
