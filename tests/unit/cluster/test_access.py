"""ClusterAccess: what its client sends, and what it stands; its credentials are test_credentials'."""

from __future__ import annotations

import ssl
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes.client import CoreV1Api
from urllib3.util import ssl_

from airflow_gpu_provider import __version__
from airflow_gpu_provider.cluster.api.access import ClusterAccess
from airflow_gpu_provider.cluster.api.rest import call
from airflow_gpu_provider.errors import ClusterUnreachable, GpuError


def test_secrets_are_not_in_its_repr() -> None:
    access = ClusterAccess(server="https://host", token=lambda: "secret", client_key_data="S0VZ")
    assert "S0VZ" not in repr(access)
    assert "lambda" not in repr(access)


def test_a_client_sends_the_token_and_keeps_to_its_time_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    client = ClusterAccess(server="https://host/", token=lambda: "secret").api_client()
    sent: list[dict[str, Any]] = []

    def request(method: str, url: str, **kwargs: Any) -> Any:
        sent.append({"url": url, **kwargs})
        raise AssertionError("sent")

    monkeypatch.setattr(client.rest_client.pool_manager, "request", request)
    with pytest.raises(AssertionError, match="sent"):
        client.call_api("/api", "GET", auth_settings=["BearerToken"])
    assert sent[0]["url"] == "https://host/api"
    assert sent[0]["headers"]["authorization"] == "Bearer secret"
    assert (sent[0]["timeout"].connect_timeout, sent[0]["timeout"].read_timeout) == (5.0, 30.0)


def test_a_client_says_who_it_is_and_has_its_writes_judged_by_every_field(monkeypatch: pytest.MonkeyPatch) -> None:
    client = ClusterAccess(server="https://host/", token=lambda: "secret").api_client()
    sent: list[tuple[str, str]] = []

    def request(method: str, url: str, **kwargs: Any) -> Any:
        assert kwargs["headers"]["User-Agent"] == f"airflow-gpu-provider/{__version__}"
        sent.append((method, url.removeprefix("https://host")))
        raise ConnectionError

    monkeypatch.setattr(client.rest_client.pool_manager, "request", request)
    pod = {"metadata": {"name": "train"}}
    for write in (
        lambda: CoreV1Api(client).create_namespaced_pod("default", pod),
        lambda: CoreV1Api(client).patch_node("a", pod),
        lambda: CoreV1Api(client).list_node(),
        lambda: call(client, "update", "/api", resource="leases", query={"dryRun": "All"}, body=pod),
        lambda: call(client, "delete", "/api", resource="leases"),
    ):
        with pytest.raises((ConnectionError, GpuError)):
            write()
    assert sent == [
        ("POST", "/api/v1/namespaces/default/pods?fieldValidation=Strict"),
        ("PATCH", "/api/v1/nodes/a?fieldValidation=Strict"),
        ("GET", "/api/v1/nodes"),
        ("PUT", "/api?dryRun=All&fieldValidation=Strict"),
        ("DELETE", "/api"),
    ]


def test_authorities_that_say_nothing_of_their_use_are_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = ssl_.create_urllib3_context

    def as_of_python_3_13() -> ssl.SSLContext:
        context = plain()
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl_, "create_urllib3_context", as_of_python_3_13)
    context = ClusterAccess(server="https://host").ssl_context()
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT
    assert context.verify_mode == ssl.CERT_REQUIRED


class Creates(BaseHTTPRequestHandler):
    """An API server's answer to a write."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(201)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def test_a_request_waits_for_a_server_that_is_away_a_write_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """For 20 seconds, as one that restarts is: a write has not reached it."""
    server = HTTPServer(("127.0.0.1", 0), Creates, bind_and_activate=False)
    server.server_bind()  # the port is its own, and refuses connections
    paused: list[float] = []

    def pause(seconds: float) -> None:
        paused.append(seconds)
        if sum(paused) >= 20 and not thread.is_alive():
            server.server_activate()
            thread.start()

    thread = threading.Thread(target=server.handle_request)
    monkeypatch.setattr("urllib3.util.retry.time", SimpleNamespace(sleep=pause))
    api = ClusterAccess(server=f"http://127.0.0.1:{server.server_port}").api_client()
    try:
        assert call(api, "create", "/api/v1/namespaces/default/configmaps", resource="configmaps", body={}) == {}
    finally:
        api.close()
        server.server_close()
    thread.join()
    assert max(paused) <= 5


def test_a_server_that_stays_away_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    server = HTTPServer(("127.0.0.1", 0), Creates, bind_and_activate=False)
    server.server_bind()
    paused: list[float] = []
    monkeypatch.setattr("urllib3.util.retry.time", SimpleNamespace(sleep=paused.append))
    api = ClusterAccess(server=f"http://127.0.0.1:{server.server_port}").api_client()
    try:
        with pytest.raises(ClusterUnreachable, match="create configmaps"):
            call(api, "create", "/api/v1/namespaces/default/configmaps", resource="configmaps", body={})
    finally:
        server.server_close()
    assert 25 <= sum(paused) <= 30
