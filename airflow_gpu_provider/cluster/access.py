"""ClusterAccess: how to reach one cluster's API server, and the synchronous client for it.

Tokens are made in-process by who hands out the access, and are asked for again before they run out; no exec plugin
is ever run. Credentials that were refused are read anew where they may have been renewed: a token's or a certificate's
file, or the connection itself.
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
    from kubernetes.client import ApiClient, ApiException

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
        tls_server_name: The name that the server's certificate has to have; empty: that of the URL.
        proxy_url: The proxy on the way to it; empty: what the environment says (HTTPS_PROXY, NO_PROXY).
        again: Reads the access again, if its credentials may be renewed elsewhere.
    """

    server: str
    ca_data: str = ""
    token: Callable[[], str] | None = field(default=None, repr=False)
    client_certificate_data: str = ""
    client_key_data: str = field(default="", repr=False)
    tls_server_name: str = ""
    proxy_url: str = field(default="", repr=False)
    again: Callable[[], ClusterAccess] | None = field(default=None, repr=False)

    @property
    def is_renewable(self) -> bool:
        """Whether credentials that were refused may be other ones the next time."""
        return self.token is not None or self.again is not None

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
        self.load_certificate(context)
        return context

    def load_certificate(self, context: ssl.SSLContext) -> None:
        """Have `context` present the client's certificate, if there is one, on each connection opened from now on."""
        if not self.client_certificate_data:
            return
        # Python reads certificates from files only; they are gone again before the first request.
        with tempfile.TemporaryDirectory() as folder:
            pem = Path(folder, "client.pem")
            pem.touch(mode=0o600)
            pem.write_bytes(_pem(self.client_certificate_data, self.client_key_data))
            context.load_cert_chain(pem)

    def api_client(self, *, for_exec: bool = False) -> ApiClient:
        """Return a new client: a few connections kept open, tokens renewed, a try again after a 401.

        It stands an API server that is away for half a minute, as one is that restarts or changes its address: a
        request waits for it, so that no task is lost to that. It can be used by several threads.

        Args:
            for_exec: It has its certificates as files too, for exec, whose WebSocket client reads them from there only.
        """
        return _client_class()(self, for_exec=for_exec)

    def pool_manager(self, configuration: Any, context: ssl.SSLContext) -> Any:
        """Return the connections of a client with these settings."""
        import urllib3

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
        options: dict[str, Any] = {"maxsize": AT_ONCE, "retries": retries, "ssl_context": context}
        if self.tls_server_name:
            options["server_hostname"] = self.tls_server_name
        if configuration.proxy:
            return urllib3.ProxyManager(configuration.proxy, proxy_headers=configuration.proxy_headers, **options)
        return urllib3.PoolManager(**options)

    def configuration(self) -> Any:
        """Return the client's settings: the address, and the way to it."""
        from kubernetes.client import Configuration
        from kubernetes.client.rest import should_bypass_proxies
        from urllib3.util import make_headers, parse_url

        configuration = Configuration(host=self.server.rstrip("/"))
        configuration.tls_server_name = self.tls_server_name or None
        if self.proxy_url:
            url = parse_url(self.proxy_url)
            configuration.proxy, configuration.no_proxy = url._replace(auth=None).url, None
            configuration.proxy_headers = make_headers(proxy_basic_auth=url.auth) if url.auth else None
        elif should_bypass_proxies(configuration.host, no_proxy=configuration.no_proxy or ""):
            configuration.proxy = None
        return configuration


def _pem(*parts: str) -> bytes:
    return b"\n".join(base64.b64decode(part) for part in parts)


class _PemFile:
    """A file for who reads certificates from files only; it exists as long as it is held.

    It has no name: Airflow ends a task's process without cleaning up, and a named file would stay behind, with the key.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the client

    def write(self, *parts: str) -> str:
        """Replace its text; return a path by which this process, and no other user, can open it."""
        self._file.seek(0)
        self._file.truncate()
        self._file.write(_pem(*parts))
        self._file.flush()
        return f"/proc/self/fd/{self._file.fileno()}"


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


class _Credentials:
    """The credentials of one client, which several threads use: renewed once they were refused."""

    def __init__(self, access: ClusterAccess, *, for_exec: bool) -> None:
        self.access = access
        self.tls = access.ssl_context()
        self._token = _Token(lambda: self.access.token() if self.access.token else "")
        self._files = (_PemFile(), _PemFile()) if for_exec else None
        self._lock = threading.Lock()

    def put_token(self, configuration: Any) -> None:
        if token := self._token.get():
            # The whole header: prefixes go by another name before version 36 of the client than after it.
            configuration.api_key["authorization"] = f"Bearer {token}"

    def put_files(self, configuration: Any) -> None:
        """Write the certificates to files, if exec needs them; without an authority it is the system's.

        The WebSocket client trusts certifi's otherwise, and not what SSL_CERT_FILE names.
        """
        if self._files is None:
            return
        access, (authority, own) = self.access, self._files
        system = ssl.get_default_verify_paths().cafile
        configuration.ssl_ca_cert = authority.write(access.ca_data) if access.ca_data else system
        if access.client_certificate_data:
            pair = own.write(access.client_certificate_data, access.client_key_data)
            configuration.cert_file = configuration.key_file = pair

    def renew(self, refused: ClusterAccess, token: str) -> None:
        """Read the access and make the token anew, unless another thread has done so since."""
        with self._lock:
            if refused.again is not None and self.access is refused:
                self.access = refused.again()
                self.access.load_certificate(self.tls)
        self._token.refused(token)


def _client_class() -> Any:
    """Define the client class when a cluster is first talked to: importing the Kubernetes client is slow."""
    from kubernetes.client import ApiClient
    from kubernetes.client.exceptions import ApiException

    from airflow_gpu_provider.cluster.rest import TIMEOUT, USER_AGENT, query_of

    class Client(ApiClient):  # type: ignore[misc]
        """ApiClient with a time limit on every request, strict writes, and one more try with fresh credentials."""

        def __init__(self, access: ClusterAccess, *, for_exec: bool) -> None:
            self._credentials = _Credentials(access, for_exec=for_exec)
            configuration = access.configuration()
            configuration.refresh_api_key_hook = self._credentials.put_token
            self._credentials.put_token(configuration)
            self._credentials.put_files(configuration)
            super().__init__(configuration)
            self.rest_client.pool_manager = access.pool_manager(configuration, self._credentials.tls)
            self.user_agent = USER_AGENT

        def call_api(
            self, resource_path: str, method: str, path_params: Any = None, query: Any = None, *args: Any, **kwargs: Any
        ) -> Any:
            query = [*(kwargs.pop("query_params", query) or ()), *query_of(method).items()]
            args = resource_path, method, path_params, query, *args
            kwargs["_request_timeout"] = kwargs.get("_request_timeout") or TIMEOUT
            used, access = self.configuration.api_key.get("authorization", ""), self._credentials.access
            try:
                return self._told(*args, **kwargs)
            except ApiException as error:
                if error.status != 401 or not access.is_renewable:
                    raise
                self._credentials.renew(access, used.removeprefix("Bearer "))
                self._credentials.put_files(self.configuration)
                self.rest_client.pool_manager.clear()  # a connection goes on with the certificate it began with
                return self._told(*args, **kwargs)

        def _told(self, path: str, method: str, *args: Any, **kwargs: Any) -> Any:
            status, reason = None, ""
            try:
                answer = self._sent(path, method, *args, **kwargs)
                status = 200
            except ApiException as error:
                status, reason = error.status or None, str(error.reason or "")
                raise
            finally:
                report_kubernetes_call(method, path, status, reason)
            return answer

        def _sent(self, *args: Any, **kwargs: Any) -> Any:
            try:
                return super().call_api(*args, **kwargs)
            except AttributeError as error:
                if (refused := _refused_exec(error)) is None:
                    raise
                raise refused from error

    return Client


def _refused_exec(masked: AttributeError) -> ApiException | None:
    """Return the refusal of an exec that the client hides: it decodes an answer's body, and a WebSocket has none.

    The answer itself is what the WebSocket's library has raised.
    """
    from kubernetes.client.exceptions import ApiException

    error = masked.__context__
    if not isinstance(error, ApiException):
        return None
    answer = error.__context__
    refused = ApiException(
        status=getattr(answer, "status_code", 0), reason=getattr(answer, "status_message", None) or error.reason
    )
    refused.body = getattr(answer, "resp_body", None)
    return refused
