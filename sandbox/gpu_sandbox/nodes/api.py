"""A thin client of the Kubernetes API: JSON over aiohttp, verified TLS, patient with restarts."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import ssl
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import yaml

from gpu_sandbox.nodes.errors import ApiError, NodeAgentError

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
_WRITES = frozenset({"POST", "PUT", "PATCH"})
# No kubelet writes a field that its API server does not know.
_STRICT = {"fieldValidation": "Strict"}
_RETRIED_STATUS = {429, 500, 502, 503, 504}
_UNREACHABLE = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError)
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Access:
    """Where the API server is and how we prove who we are."""

    server: str
    ssl_context: ssl.SSLContext
    authority: str
    token: str | None

    @property
    def host(self) -> str:
        """The API server's host name."""
        return urlsplit(self.server).hostname or ""

    @property
    def port(self) -> int:
        """The API server's port."""
        return urlsplit(self.server).port or 443


def read_kubeconfig(path: Path) -> Access:
    """Read the current context of a kubeconfig. Raises NodeAgentError when it has no CA to verify with."""
    config = yaml.safe_load(path.read_text())
    context = _named(config, "contexts", config["current-context"])["context"]
    cluster = _named(config, "clusters", context["cluster"])["cluster"]
    user = _named(config, "users", context["user"])["user"]
    authority = _pem(cluster, "certificate-authority")
    if not authority:
        raise NodeAgentError(f"the kubeconfig {path} names no certificate authority to verify the API server with")
    ssl_context = ssl.create_default_context(cadata=authority)
    certificate, key = _pem(user, "client-certificate"), _pem(user, "client-key")
    if certificate and key:
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(certificate + "\n" + key)
            file.flush()
            ssl_context.load_cert_chain(file.name)
    server = cluster["server"].rstrip("/")
    return Access(server=server, ssl_context=ssl_context, authority=authority, token=user.get("token"))


def _named(config: Mapping[str, Any], kind: str, name: str) -> dict[str, Any]:
    for item in config[kind]:
        if item["name"] == name:
            return dict(item)
    raise NodeAgentError(f"the kubeconfig has no {kind} entry {name!r}")


def _pem(section: Mapping[str, Any], key: str) -> str:
    if data := section.get(f"{key}-data"):
        return base64.b64decode(data).decode()
    return Path(section[key]).read_text() if section.get(key) else ""


class Api:
    """Requests against one API server. Use as an async context manager."""

    def __init__(self, access: Access) -> None:
        self.access = access

    async def __aenter__(self) -> Api:
        headers = {"Authorization": f"Bearer {self.access.token}"} if self.access.token else {}
        connector = aiohttp.TCPConnector(ssl=self.access.ssl_context, limit=24, keepalive_timeout=60)
        self._session = aiohttp.ClientSession(connector=connector, headers=headers)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def get(self, path: str, **params: str) -> dict[str, Any]:
        """GET one object or a list."""
        return await self._request("GET", path, params=params)

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """POST an object."""
        return await self._request("POST", path, body=body)

    async def replace(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """PUT an object."""
        return await self._request("PUT", path, body=body)

    async def patch(self, path: str, body: Mapping[str, Any], content_type: str = MERGE_PATCH) -> dict[str, Any]:
        """PATCH an object."""
        return await self._request("PATCH", path, body=body, content_type=content_type)

    async def delete(self, path: str, body: Mapping[str, Any] | None = None) -> bool:
        """DELETE an object; False when it is gone already, or another has taken its name."""
        try:
            await self._request("DELETE", path, body=body)
        except ApiError as error:
            if error.status in (404, 409):
                return False
            raise
        return True

    async def watch(self, path: str, **params: str) -> AsyncIterator[dict[str, Any]]:
        """Yield watch events until the server ends the stream; raises ApiError, or what aiohttp raises."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=400)
        url = self.access.server + path
        async with self._session.get(url, params={"watch": "1", **params}, timeout=timeout) as response:
            if response.status != 200:
                raise _error(response.status, await response.read())
            buffer = b""
            async for chunk in response.content.iter_any():
                *lines, buffer = (buffer + chunk).split(b"\n")
                for line in lines:
                    yield json.loads(line)

    async def _request(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        patience: float = float("inf"),
    ) -> dict[str, Any]:
        """One request, repeated while the server is away or overloaded, for at most patience seconds."""
        if method in _WRITES:
            params = {**(params or {}), **_STRICT}
        data = None if body is None else json.dumps(body)
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + patience, 0.05
        while True:
            try:
                return await self._once(method, path, data, params, content_type)
            except (ApiError, *_UNREACHABLE) as error:
                if isinstance(error, ApiError) and error.status not in _RETRIED_STATUS:
                    raise
                if loop.time() + pause > deadline:
                    raise
                log.info("%s %s: %r; again in %.2f s", method, path, error, pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, 2.0)

    async def _once(
        self, method: str, path: str, data: str | None, params: Mapping[str, str] | None, content_type: str
    ) -> dict[str, Any]:
        async with self._session.request(
            method,
            self.access.server + path,
            data=data,
            params=params,
            headers={"Content-Type": content_type},
            timeout=aiohttp.ClientTimeout(total=30),
        ) as response:
            raw = await response.read()
            if response.status >= 300:
                raise _error(response.status, raw)
            answer: dict[str, Any] = json.loads(raw)
            return answer


def _error(status: int, raw: bytes) -> ApiError:
    try:
        body = json.loads(raw)
        return ApiError(status, body.get("reason") or "", body.get("message") or "")
    except (ValueError, AttributeError):
        return ApiError(status, "", raw.decode(errors="replace")[:500])
