"""Credentials that are renewed while a client uses them, and ways to a cluster by another name or a proxy.

Each for both clients: a worker's, and a triggerer's. The server is this file's own, with TLS where certificates count.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from airflow_gpu_provider import KubernetesGpuPool
from airflow_gpu_provider.clouds.kubernetes.kubernetes_connection import access_from_connection
from airflow_gpu_provider.cluster.api.access import ClusterAccess
from airflow_gpu_provider.cluster.api.async_api import AsyncApi
from airflow_gpu_provider.cluster.api.rest import call
from airflow_gpu_provider.errors import ClusterUnreachable, CredentialsError
from airflow_gpu_provider.training.life.hook import PoolHook
from gpu_sandbox.pki import CertificateAuthority, KeyPair

POOL = KubernetesGpuPool(name="lab", nodes=["gpu-1"], gpus_per_node=1)


class Server(ThreadingHTTPServer):
    """Answers what it takes for allowed; `asked` are the paths and headers of all requests."""

    daemon_threads = True

    def __init__(self, allows: Callable[[BaseHTTPRequestHandler], bool]) -> None:
        self.allows = allows
        self.asked: list[tuple[str, dict[str, str]]] = []
        super().__init__(("127.0.0.1", 0), Handler)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections stay open, as an API server's do

    def do_GET(self) -> None:
        server: Any = self.server
        server.asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        body = b"{}"
        self.send_response(200 if server.allows(self) else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def serving(
    allows: Callable[[BaseHTTPRequestHandler], bool] = lambda _: True, context: ssl.SSLContext | None = None
) -> Iterator[Server]:
    server = Server(allows)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Worker:
    """The client of a task's process."""

    def __init__(self, access: ClusterAccess) -> None:
        hook = PoolHook(POOL)
        hook.access = access
        self.api = hook.new_client().api_client

    async def ask(self) -> None:
        call(self.api, "get", "/version", resource="version")

    async def close(self) -> None:
        self.api.close()

    def certificate_for_exec(self) -> bytes:
        return Path(self.api.configuration.cert_file).read_bytes()


class Triggerer:
    """The client that a triggerer's waits share."""

    def __init__(self, access: ClusterAccess) -> None:
        self.api = AsyncApi(access)

    async def ask(self) -> None:
        await self.api.get("version")

    async def close(self) -> None:
        await self.api.close()


CLIENTS = pytest.mark.parametrize("client", [Worker, Triggerer])


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority(tmp_path / "pki", name="lab")


def context_of(authority: CertificateAuthority, *names: str) -> ssl.SSLContext:
    """Return a server's settings: a client may present a certificate, as to an API server."""
    pair = authority.server("server", *names)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate_file, pair.key_file)
    context.load_verify_locations(authority.certificate_file)
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


@CLIENTS
async def test_renewed_certificate_is_presented(client: type, authority: CertificateAuthority) -> None:
    pairs = {name: authority.client(name, user=name) for name in ("old", "new")}
    present = ["old"]
    reads: list[str] = []

    def access() -> ClusterAccess:
        reads.append(present[0])
        pair: KeyPair = pairs[present[0]]
        return ClusterAccess(
            server=f"https://127.0.0.1:{server.server_port}",
            ca_data=_base64(authority.certificate),
            client_certificate_data=_base64(pair.certificate),
            client_key_data=_base64(pair.key),
            again=access,
        )

    def is_present(request: BaseHTTPRequestHandler) -> bool:
        connection: Any = request.connection
        subject = dict(field[0] for field in (connection.getpeercert() or {}).get("subject", ()))
        return bool(subject.get("commonName") == present[0])

    with serving(is_present, context_of(authority, "127.0.0.1")) as server:
        asks = client(access())
        await asks.ask()
        present[0] = "new"
        await asks.ask()
        await asks.ask()
        assert reads == ["old", "new"]
        if client is Worker:
            assert pairs["new"].certificate in asks.certificate_for_exec()
        present[0] = "nobody's"
        pairs["nobody's"] = pairs["old"]
        with pytest.raises(CredentialsError):
            await asks.ask()
        await asks.close()


@CLIENTS
async def test_pair_that_is_half_renewed_costs_one_look(
    client: type, authority: CertificateAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_gpu_provider.clouds.from_connection.AGAIN_AFTER", 0.0)
    pairs = {name: authority.client(name, user=name) for name in ("old", "new")}
    present, certificate, key = ["old"], tmp_path / "client.crt", tmp_path / "client.key"
    certificate.write_bytes(pairs["old"].certificate)
    key.write_bytes(pairs["old"].key)

    def is_present(request: BaseHTTPRequestHandler) -> bool:
        connection: Any = request.connection
        subject = dict(field[0] for field in (connection.getpeercert() or {}).get("subject", ()))
        return bool(subject.get("commonName") == present[0])

    with serving(is_present, context_of(authority, "127.0.0.1")) as server:
        cluster = {"server": f"https://127.0.0.1:{server.server_port}"}
        cluster["certificate-authority"] = str(authority.certificate_file)
        user = {"client-certificate": str(certificate), "client-key": str(key)}
        monkeypatch.setenv("AIRFLOW_CONN_LAB", kubernetes_connection(user, cluster))
        asks = client(access_from_connection("lab", None))
        await asks.ask()
        present[0] = "new"
        certificate.write_bytes(pairs["new"].certificate)
        with pytest.raises(CredentialsError, match="incomplete certificates, or ones that do not match its key"):
            await asks.ask()
        key.write_bytes(pairs["new"].key)
        await asks.ask()
        await asks.close()


def kubernetes_connection(user: dict[str, str], cluster: dict[str, str]) -> str:
    kubeconfig = {
        "current-context": "lab",
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "u"}}],
        "clusters": [{"name": "lab", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    }
    return json.dumps({"conn_type": "kubernetes", "extra": {"kube_config": kubeconfig}})


@CLIENTS
async def test_renewed_token_is_sent(client: type) -> None:
    present = ["first"]

    def access() -> ClusterAccess:
        mine = present[0]
        return ClusterAccess(server=f"http://127.0.0.1:{server.server_port}", token=lambda: mine, again=access)

    with serving(lambda request: request.headers["Authorization"] == f"Bearer {present[0]}") as server:
        asks = client(access())
        await asks.ask()
        present[0] = "second"
        await asks.ask()
        await asks.close()
    sent = [headers["authorization"].removeprefix("Bearer ") for _, headers in server.asked]
    assert sent == ["first", "first", "second"]


@CLIENTS
async def test_a_token_that_was_replaced_in_the_connection_costs_no_look(
    client: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    present = ["the old one"]
    with serving(lambda request: request.headers["Authorization"] == f"Bearer {present[0]}") as server:
        cluster = {"server": f"http://127.0.0.1:{server.server_port}"}
        monkeypatch.setenv("AIRFLOW_CONN_LAB", kubernetes_connection({"token": present[0]}, cluster))
        asks = client(access_from_connection("lab", None))
        await asks.ask()
        present[0] = "the new one"
        monkeypatch.setenv("AIRFLOW_CONN_LAB", kubernetes_connection({"token": present[0]}, cluster))
        await asks.ask()
        await asks.close()


@CLIENTS
async def test_a_refusal_is_told_in_a_sentence(client: type) -> None:
    """Airflow logs an error with all that it is chained to: the client's has the answer's headers, and its frames."""
    with serving(lambda _: False) as server:
        address = f"http://127.0.0.1:{server.server_port}"
        asks = client(ClusterAccess(server=address, token=lambda: "t"))
        with pytest.raises(CredentialsError) as refused:
            await asks.ask()
        await asks.close()
    told = "".join(traceback.format_exception(refused.value))
    assert told.count("Traceback") == 1
    assert "HTTP response headers" not in told
    assert len(server.asked) == 2  # once more with a new token


@CLIENTS
async def test_failure_to_read_again_is_the_error(client: type) -> None:
    def gone() -> ClusterAccess:
        raise CredentialsError("The token's file is gone.")

    with serving(lambda _: False) as server:
        asks = client(ClusterAccess(server=f"http://127.0.0.1:{server.server_port}", again=gone))
        with pytest.raises(CredentialsError, match="file is gone"):
            await asks.ask()
        await asks.close()


@CLIENTS
async def test_certificate_may_have_another_name_than_the_address(
    client: type, authority: CertificateAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("urllib3.util.retry.Retry.sleep", lambda *_: None)
    with serving(context=context_of(authority, "kubernetes.lab.example.com")) as server:
        way = {"server": f"https://127.0.0.1:{server.server_port}", "ca_data": _base64(authority.certificate)}
        named = client(ClusterAccess(**way, tls_server_name="kubernetes.lab.example.com"))
        await named.ask()
        await named.close()
        for wrong in ("", "another.example.com"):
            asks = client(ClusterAccess(**way, tls_server_name=wrong))
            with pytest.raises(ClusterUnreachable):
                await asks.ask()
            await asks.close()


@CLIENTS
async def test_proxy_of_the_kubeconfig_goes_before_the_environments(
    client: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "kubernetes.example.com")
    with serving() as proxy:
        url = f"http://somebody:se%40cret@127.0.0.1:{proxy.server_port}"
        access = ClusterAccess(server="http://kubernetes.example.com", proxy_url=url)
        assert "se%40cret" not in repr(access)
        asks = client(access)
        await asks.ask()
        await asks.close()
    ((path, headers),) = proxy.asked
    assert path == "http://kubernetes.example.com/version"
    assert base64.b64decode(headers["proxy-authorization"].removeprefix("Basic ")) == b"somebody:se@cret"


def test_no_proxy_of_the_environment_holds_whatever_the_client_reads_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "kubernetes.example.com")
    for server, proxy in (("kubernetes.example.com", None), ("another.example.com", "http://proxy:3128")):
        assert Worker(ClusterAccess(server=f"http://{server}")).api.configuration.proxy == proxy


def test_exec_goes_by_the_same_way() -> None:
    access = ClusterAccess(
        server="https://10.0.0.1", tls_server_name="a.example.com", proxy_url="http://somebody:secret@proxy:3128"
    )
    configuration = Worker(access).api.configuration
    assert configuration.tls_server_name == "a.example.com"
    assert configuration.proxy == "http://proxy:3128"
    assert configuration.no_proxy is None
    assert configuration.proxy_headers["proxy-authorization"].startswith("Basic ")
