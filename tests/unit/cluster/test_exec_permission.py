"""Whether a result can be read is asked before the pod exists, and what refuses an exec is told as it is."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes.client import ApiException
from kubernetes.stream import stream

from airflow_gpu_provider import KubernetesGpuPool
from airflow_gpu_provider.cluster.api.access import ClusterAccess
from airflow_gpu_provider.cluster.api.access_review import verbs_missing_for_exec
from airflow_gpu_provider.cluster.api.api_errors import mapped
from airflow_gpu_provider.errors import ClusterUnreachable, GpuError, PermissionDenied
from airflow_gpu_provider.training.life import collect
from airflow_gpu_provider.training.life.hook import PoolHook


class Server(HTTPServer):
    """An API server: its release, the verbs on pods/exec that it allows, and what it answers to an exec."""

    minor, allowed, status, message = "34", ("get", "create"), 403, ""
    tokens: list[str]

    def __init__(self) -> None:
        self.tokens = []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def access(self) -> ClusterAccess:
        tokens = iter(("first", "second"))
        return ClusterAccess(server=f"http://127.0.0.1:{self.server_port}", token=lambda: next(tokens))


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        if self.path == "/version":
            self._answer(200, {"major": "1", "minor": self.server.minor})
        else:
            self.server.tokens.append(self.headers["Authorization"])
            self._answer(self.server.status, {"message": self.server.message})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["spec"]["resourceAttributes"]
        assert asked == {"resource": "pods", "subresource": "exec", "verb": asked["verb"], "namespace": "ml"}
        self._answer(201, {"status": {"allowed": asked["verb"] in self.server.allowed}})

    def _answer(self, status: int, body: Any) -> None:
        self.send_response(status)
        content = json.dumps(body).encode()
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def serving(**changes: Any) -> Iterator[Server]:
    server = Server()
    vars(server).update(changes)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(
    ("minor", "allowed", "missing"),
    [
        ("34", ("get", "create"), ()),
        ("34", ("get",), ()),
        ("34", ("create",), ("get",)),
        ("34+", (), ("get", "create")),
        ("35", ("get", "create"), ()),
        ("35+", ("get",), ("create",)),
        ("36", ("create",), ("get",)),
    ],
)
def test_verbs_that_exec_needs_depend_on_the_release(
    minor: str, allowed: tuple[str, ...], missing: tuple[str, ...]
) -> None:
    with serving(minor=minor, allowed=allowed) as server:
        assert verbs_missing_for_exec(server.access.api_client(), "ml") == missing


def check(monkeypatch: pytest.MonkeyPatch, missing: tuple[str, ...] | GpuError, *, has_result: bool = True) -> None:
    def ask(api: Any, namespace: str) -> tuple[str, ...]:
        assert namespace == "ml"
        if isinstance(missing, GpuError):
            raise missing
        return missing

    monkeypatch.setattr(collect, "verbs_missing_for_exec", ask)
    run: Any = SimpleNamespace(cluster=SimpleNamespace(api=None), settings=SimpleNamespace(has_result=has_result))
    collect.check_exec(run, "ml")


def test_no_pod_is_created_whose_result_could_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PermissionDenied, match=r"get and create pods/exec in namespace ml.*or leave out do_xcom_push"):
        check(monkeypatch, ("get", "create"))


def test_pod_without_a_result_needs_no_exec_and_no_answer_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    check(monkeypatch, ("get", "create"), has_result=False)
    check(monkeypatch, ClusterUnreachable("The API server was away."))
    check(monkeypatch, ())


def run_command(server: Server) -> None:
    hook = PoolHook(KubernetesGpuPool(name="lab", nodes=["gpu-1"], gpus_per_node=1))
    hook.access = server.access
    core = hook.new_client()
    with mapped("create", "pods/exec"):
        stream(core.connect_get_namespaced_pod_exec, "train", "ml", command=["true"], stdout=True)


def test_refused_exec_is_told_in_the_servers_words() -> None:
    """The client decodes the body of the answer to a WebSocket, of which there is none: AttributeError."""
    said = 'pods "train" is forbidden: User "a" cannot get resource "pods/exec" in API group "" in the namespace "ml"'
    with serving(message=said) as server, pytest.raises(PermissionDenied, match="cannot get resource") as refused:
        run_command(server)
    assert isinstance(refused.value.__context__, ApiException)


def test_refused_credentials_are_made_anew_for_an_exec_too() -> None:
    with serving(status=401, message="Unauthorized") as server, pytest.raises(GpuError, match="Unauthorized"):
        run_command(server)
    assert server.tokens == ["Bearer first", "Bearer second"]
