"""ClusterAccess: how to reach one cluster's API server, and the synchronous client for it.

Tokens are made in-process by who hands out the access, and are asked for again before they run out; no exec plugin
is ever run.
"""

from __future__ import annotations

import base64
import ssl
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.api_calls import report_kubernetes_call
from airflow_gpu_provider.cluster.threads import AT_ONCE

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

TOKEN_MAX_AGE = 600.0
"""Seconds after which a token is made anew; EKS's live 900."""


@dataclass(frozen=True, kw_only=True)
class ClusterAccess:
    """Where the API server is, how to know it, and how to be known by it.

    Attributes:
        server: Its URL.
        ca_data: The certificates that vouch for it: PEM in base64, as in a kubeconfig. Empty: the system's.
        token: Makes a bearer token, when credentials are tokens.
        client_certificate_data: The client's certificate, PEM in base64, when credentials are a certificate.
        client_key_data: Its key, PEM in base64.
    """

    server: str
    ca_data: str = ""
    token: Callable[[], str] | None = field(default=None, repr=False)
    client_certificate_data: str = ""
    client_key_data: str = field(default="", repr=False)

    def ssl_context(self) -> ssl.SSLContext:
        """Return TLS settings that verify the server and present the client's certificate."""
        from urllib3.util.ssl_ import create_urllib3_context

        context = create_urllib3_context()
        # Python 3.13 is strict about what certificates say of their use; clusters' own authorities often say nothing.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if self.ca_data:
            context.load_verify_locations(cadata=base64.b64decode(self.ca_data).decode())
        else:
            context.load_default_certs()
        if self.client_certificate_data:
            # Python reads certificates from files only; they are gone again before the first request.
            with tempfile.TemporaryDirectory() as folder:
                pem = Path(folder, "client.pem")
                pem.touch(mode=0o600)
                both = (self.client_certificate_data, self.client_key_data)
                pem.write_bytes(b"\n".join(base64.b64decode(part) for part in both))
                context.load_cert_chain(pem)
        return context

    def api_client(self) -> ApiClient:
        """Return a new client: a few connections kept open, tokens renewed, a try again after a 401.

        It stands an API server that is away for half a minute, as one is that restarts or changes its address: a
        request waits for it, so that no task is lost to that. It can be used by several threads.
        """
        import urllib3
        from kubernetes.client import Configuration
        from kubernetes.client.rest import should_bypass_proxies

        configuration = Configuration(host=self.server.rstrip("/"))
        # A request that did not reach the server is sent again; one that may have, only if it reads. The pauses are
        # 0, 1, 2, 4, 5, 5, 5 and 5 seconds.
        retries = urllib3.Retry(
            total=8,
            read=3,
            other=3,
            backoff_factor=0.5,
            backoff_max=5,
            allowed_methods={"GET"},
            status_forcelist={502, 503, 504},
            raise_on_status=False,
        )
        options: dict[str, Any] = {"maxsize": AT_ONCE, "retries": retries, "ssl_context": self.ssl_context()}
        client = _client_class()(configuration, self.token)
        bypass = should_bypass_proxies(configuration.host, no_proxy=configuration.no_proxy or "")
        if configuration.proxy and not bypass:
            client.rest_client.pool_manager = urllib3.ProxyManager(configuration.proxy, **options)
        else:
            client.rest_client.pool_manager = urllib3.PoolManager(**options)
        return client


class _Token:
    """One bearer token, made again when it is old or was refused."""

    def __init__(self, make: Callable[[], str]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._value = ""
        self._made_at = float("-inf")

    def get(self) -> str:
        with self._lock:
            if time.monotonic() - self._made_at > TOKEN_MAX_AGE:
                self._value, self._made_at = self._make(), time.monotonic()
            return self._value

    def refused(self, value: str) -> None:
        with self._lock:
            if value == self._value:
                self._made_at = float("-inf")


def _client_class() -> Any:
    """Define the client class when a cluster is first talked to: importing the Kubernetes client is slow."""
    from kubernetes.client import ApiClient
    from kubernetes.client.exceptions import ApiException, UnauthorizedException

    from airflow_gpu_provider.cluster.rest import TIMEOUT, USER_AGENT, query_of

    class Client(ApiClient):  # type: ignore[misc]
        """ApiClient with a time limit on every request, strict writes, and one more try with a fresh token."""

        def __init__(self, configuration: Any, make_token: Callable[[], str] | None) -> None:
            self._token = _Token(make_token) if make_token else None
            if self._token:
                configuration.refresh_api_key_hook = self._put_token
                self._put_token(configuration)
            super().__init__(configuration)
            self.user_agent = USER_AGENT

        def _put_token(self, configuration: Any) -> None:
            if self._token:
                # The whole header: prefixes go by another name before version 36 of the client than after it.
                configuration.api_key["authorization"] = f"Bearer {self._token.get()}"

        def call_api(
            self, resource_path: str, method: str, path_params: Any = None, query: Any = None, *args: Any, **kwargs: Any
        ) -> Any:
            query = [*(kwargs.pop("query_params", query) or ()), *query_of(method).items()]
            args = resource_path, method, path_params, query, *args
            kwargs["_request_timeout"] = kwargs.get("_request_timeout") or TIMEOUT
            used = self.configuration.api_key.get("authorization", "")
            try:
                return self._told(*args, **kwargs)
            except UnauthorizedException:
                if self._token is None:
                    raise
                self._token.refused(used.removeprefix("Bearer "))
                return self._told(*args, **kwargs)

        def _told(self, path: str, method: str, *args: Any, **kwargs: Any) -> Any:
            status, reason = None, ""
            try:
                answer = super().call_api(path, method, *args, **kwargs)
                status = 200
            except ApiException as error:
                status, reason = error.status or None, str(error.reason or "")
                raise
            finally:
                report_kubernetes_call(method, path, status, reason)
            return answer

    return Client
