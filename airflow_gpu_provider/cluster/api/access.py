"""ClusterAccess: how to reach one cluster's API server, its credentials, and the synchronous client for it.

Tokens are made by who hands out the access, and again before they run out: those of EKS and GKE in this process, those
of a `kubernetes` connection as its kubeconfig has it, whose exec plugin is a command that runs here. What the API
server refuses is found again, with what the Airflow connection holds then, by the first request that is refused; the
others that were refused with the same go on with what that one found.
"""

from __future__ import annotations

import base64
import ssl
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from airflow_gpu_provider.cluster.api.connection_errors import unlogged
from airflow_gpu_provider.cluster.api.threads import AT_ONCE

if TYPE_CHECKING:
    from kubernetes.client import ApiClient, ApiException, Configuration


TOKEN_MAX_AGE = 600.0
"""Seconds after which a token is made again; EKS's live 900."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Shown:
    """What a request shows: the access with its certificate, and the token; empty for none."""

    access: ClusterAccess
    token: str
    made_at: float

    @property
    def header(self) -> str:
        """The Authorization header; empty for none."""
        return f"Bearer {self.token}" if self.token else ""


class Credentials:
    """The credentials of one client; thread-safe.

    Its lock is reentrant: a signal handler, which may interrupt their making, makes requests too.
    """

    def __init__(self, access: ClusterAccess) -> None:
        self._access = access
        self._lock = threading.RLock()
        self._shown: Shown | None = None

    @property
    def fresh(self) -> Shown | None:
        """What the next request shows; None where `get` has to make it, which may take a while. Never blocks."""
        shown = self._shown
        if shown is None or (shown.access.token is not None and time.monotonic() - shown.made_at > TOKEN_MAX_AGE):
            return None
        return shown

    def get(self) -> Shown:
        with self._lock:
            return self.fresh or self._make(self._access)

    def after(self, refused: Shown) -> Shown | None:
        """Return what to show now that `refused` was refused; None where there is nothing else."""
        with self._lock:
            if self._shown is not refused:
                return self._shown
            self._access = refused.access.found_again()
            if self._access is refused.access and self._access.token is None:
                return None
            return self._make(self._access)

    def _make(self, access: ClusterAccess) -> Shown:
        token = access.token() if access.token is not None else ""
        self._shown = Shown(access=access, token=token, made_at=time.monotonic())
        return self._shown


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
        again: Reads the Airflow connection again, and returns the access that it gives now; may take a while. Default:
            this access, which knows of no connection.
    """

    server: str
    ca_data: str = ""
    token: Callable[[], str] | None = field(default=None, repr=False, compare=False)
    client_certificate_data: str = ""
    client_key_data: str = field(default="", repr=False)
    tls_server_name: str = ""
    proxy_url: str = field(default="", repr=False)
    again: Callable[[], ClusterAccess] | None = field(default=None, repr=False, compare=False)

    def found_again(self) -> ClusterAccess:
        """Return the access with the credentials that its Airflow connection holds now."""
        return self.again() if self.again is not None else self

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
                pem.write_bytes(_pem(self.client_certificate_data, self.client_key_data))
                context.load_cert_chain(pem)
        return context

    def api_client(self, *, for_exec: bool = False) -> ApiClient:
        """Return a new client: a few connections kept open, tokens renewed, a try again after a 401.

        It stands an API server that is away for half a minute, as one is that restarts or changes its address: a
        request waits for it, so that no task is lost to that. It can be used by several threads.

        Args:
            for_exec: It has its certificates as files too, for exec, whose WebSocket client reads them from there only.
        """
        return _client_class()(Credentials(self), for_exec=for_exec)


def _connections(configuration: Configuration, access: ClusterAccess) -> Any:
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
    options: dict[str, Any] = {"maxsize": AT_ONCE, "retries": retries, "ssl_context": access.ssl_context()}
    if access.tls_server_name:
        options["server_hostname"] = access.tls_server_name
    if configuration.proxy:
        return urllib3.ProxyManager(configuration.proxy, proxy_headers=configuration.proxy_headers, **options)
    return urllib3.PoolManager(**options)


def _put_way(configuration: Configuration, access: ClusterAccess) -> None:
    from kubernetes.client import Configuration
    from kubernetes.client.rest import should_bypass_proxies
    from urllib3.util import make_headers, parse_url

    configuration.host = access.server.rstrip("/")
    configuration.tls_server_name = access.tls_server_name or None
    if access.proxy_url:
        url = parse_url(access.proxy_url)
        configuration.proxy, configuration.no_proxy = url._replace(auth=None).url, None
        configuration.proxy_headers = make_headers(proxy_basic_auth=unquote(url.auth)) if url.auth else None
        return
    # NO_PROXY is read here: version 35 of the client passes over it.
    bypass = should_bypass_proxies(configuration.host, no_proxy=None)
    configuration.proxy, configuration.no_proxy = None if bypass else Configuration().proxy, None
    configuration.proxy_headers = None


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


class _ExecFiles:
    """The certificates of a client as files, for exec."""

    def __init__(self) -> None:
        self._authority, self._own = _PemFile(), _PemFile()

    def put(self, configuration: Configuration, access: ClusterAccess) -> None:
        """Write an access' certificates, and name the files in a client's settings; without an authority, the system's.

        The WebSocket client trusts certifi's otherwise, and not what SSL_CERT_FILE names.
        """
        system = ssl.get_default_verify_paths().cafile
        configuration.ssl_ca_cert = self._authority.write(access.ca_data) if access.ca_data else system
        pair = (access.client_certificate_data, access.client_key_data) if access.client_certificate_data else ()
        configuration.cert_file = configuration.key_file = self._own.write(*pair) if pair else None


class _Requests:
    """What ApiClient lacks: a time limit on every request, strict writes, and one more try with new credentials."""

    configuration: Configuration
    rest_client: Any
    user_agent: str

    def __init__(self, credentials: Credentials, *, for_exec: bool) -> None:
        from kubernetes.client import Configuration

        from airflow_gpu_provider.cluster.api.rest import USER_AGENT

        self._credentials = credentials
        self._files = _ExecFiles() if for_exec else None
        self._access: ClusterAccess | None = None
        shown = credentials.get()
        super().__init__(Configuration())  # type: ignore[call-arg]
        self.configuration.refresh_api_key_hook = lambda configuration: self._show(credentials.get())
        self.user_agent = USER_AGENT
        self._show(shown)

    def _show(self, shown: Shown) -> None:
        # The whole header: prefixes go by another name before version 36 of the client than after it.
        self.configuration.api_key = {"authorization": shown.header} if shown.header else {}
        if self._access != shown.access:
            _put_way(self.configuration, shown.access)
            if self._files is not None:
                self._files.put(self.configuration, shown.access)
            self.rest_client.pool_manager = _connections(self.configuration, shown.access)
            self._access = shown.access

    def call_api(
        self, resource_path: str, method: str, path_params: Any = None, query: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        from kubernetes.client.exceptions import ApiException

        from airflow_gpu_provider.cluster.api.rest import TIMEOUT, query_of

        query = [*(kwargs.pop("query_params", query) or ()), *query_of(method).items()]
        args = resource_path, method, path_params, query, *args
        kwargs["_request_timeout"] = kwargs.get("_request_timeout") or TIMEOUT
        used = self._credentials.get()
        try:
            return self._sent(*args, **kwargs)
        except ApiException as error:
            new = self._credentials.after(used) if error.status == 401 else None
            if new is None:
                raise
        self._show(new)
        return self._sent(*args, **kwargs)

    def _sent(self, *args: Any, **kwargs: Any) -> Any:
        try:
            with unlogged("urllib3.connectionpool"):  # of its own retries, with the whole address
                return super().call_api(*args, **kwargs)  # type: ignore[misc]
        except Exception as error:
            if (refused := _refused_exec(error)) is None:
                raise
            raise refused from error


def _refused_exec(error: BaseException | None) -> ApiException | None:
    """Return the refusal of an exec, which is what the WebSocket's library has raised; None where it is none.

    The client makes an ApiException without a status of it, and from version 36 on an AttributeError of that: it
    decodes an answer's body, and a WebSocket has none.
    """
    from kubernetes.client.exceptions import ApiException

    if isinstance(error, AttributeError):
        error = error.__context__
    if not isinstance(error, ApiException) or error.status:
        return None
    answer = error.__context__
    refused = ApiException(
        status=getattr(answer, "status_code", 0), reason=getattr(answer, "status_message", None) or error.reason
    )
    refused.body = getattr(answer, "resp_body", None)
    return refused


@cache
def _client_class() -> Any:
    """Define the client's class when a cluster is first talked to: importing the Kubernetes client is slow."""
    from kubernetes.client import ApiClient

    return type("Client", (_Requests, ApiClient), {})
