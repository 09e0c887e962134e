"""What HTTP libraries say of a connection that failed is told in words, without the request's whole address."""

from __future__ import annotations

import logging
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import boto3
import pytest
import requests
import urllib3
from botocore.config import Config

from airflow_gpu_provider.clouds.aws.errors import mapped_errors as aws_errors
from airflow_gpu_provider.clouds.google.errors import mapped_errors as google_errors
from airflow_gpu_provider.cluster.api.access import ClusterAccess
from airflow_gpu_provider.cluster.api.connection_errors import failure_in_words, unlogged
from airflow_gpu_provider.cluster.api.rest import list_items
from airflow_gpu_provider.errors import CloudError, ClusterUnreachable

PATH = "api/v1/namespaces/ml/pods?limit=500"
SILENT = 0.05
RESET = struct.pack("ii", 1, 0)


@pytest.fixture(scope="module")
def ports() -> Iterator[dict[str, int]]:
    """Ports on which nobody listens, nobody answers, and somebody hangs up."""
    with socket.socket() as nobody, socket.socket() as silent, socket.socket() as rude:
        for each in (nobody, silent, rude):
            each.bind(("127.0.0.1", 0))
        silent.listen()
        rude.listen()

        def hang_up() -> None:
            while True:
                try:
                    connection, _ = rude.accept()
                except OSError:
                    return
                connection.recv(10)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                connection.close()

        threading.Thread(target=hang_up, daemon=True).start()
        of = {"refused": nobody, "silent": silent, "reset": rude}
        yield {name: each.getsockname()[1] for name, each in of.items()}
        rude.shutdown(socket.SHUT_RDWR)


def by_urllib3(port: int) -> None:
    retries = urllib3.Retry(total=1, backoff_factor=0)
    urllib3.PoolManager(retries=retries).request("GET", f"http://127.0.0.1:{port}/{PATH}", timeout=SILENT)


def by_requests(port: int) -> None:
    requests.get(f"http://127.0.0.1:{port}/{PATH}", timeout=SILENT)


def by_botocore(port: int) -> None:
    config = Config(retries={"total_max_attempts": 1}, read_timeout=SILENT, connect_timeout=SILENT)
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    url = f"http://127.0.0.1:{port}"
    client = boto3.client("eks", region_name="us-west-2", endpoint_url=url, config=config, **keys)
    client.list_nodegroups(clusterName="secret-name")


@pytest.mark.parametrize("call", [by_urllib3, by_requests, by_botocore], ids=["urllib3", "requests", "botocore"])
@pytest.mark.parametrize("how", ["refused", "silent", "reset"])
def test_no_address_and_no_repr_is_told(ports: dict[str, int], call: Callable[[int], None], how: str) -> None:
    with pytest.raises(Exception) as failed:
        call(ports[how])
    words = failure_in_words(failed.value)
    assert words
    assert not [
        part for part in ("namespaces", "limit=", "secret-name", "Pool(", " at 0x", "Caused by", "('") if part in words
    ]


def test_who_did_not_answer_is_told(ports: dict[str, int]) -> None:
    with pytest.raises(urllib3.exceptions.MaxRetryError) as failed:
        by_urllib3(ports["refused"])
    assert failure_in_words(failed.value).startswith(f"127.0.0.1:{ports['refused']}: ")
    assert failure_in_words(failed.value).endswith("Connection refused")
    assert failure_in_words(TimeoutError()) == "TimeoutError"


@pytest.mark.parametrize(
    ("mapped", "call"),
    [
        (aws_errors(service="eks", connection="c"), by_botocore),
        (google_errors(call="container.clusters.get", connection="c"), by_requests),
    ],
    ids=["AWS", "Google"],
)
def test_errors_of_clouds_are_in_words(
    ports: dict[str, int], mapped: AbstractContextManager[None], call: Callable[[int], None]
) -> None:
    with pytest.raises(CloudError) as failed, mapped:
        call(ports["refused"])
    assert not [part for part in ("node-groups", "namespaces", "Pool(") if part in str(failed.value)]


def test_an_api_server_that_is_away_is_one_error_and_no_line_of_urllib3(
    ports: dict[str, int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("urllib3.util.retry.time.sleep", lambda _: None)
    api = ClusterAccess(server=f"http://127.0.0.1:{ports['refused']}").api_client()
    with caplog.at_level(logging.DEBUG), pytest.raises(ClusterUnreachable, match=r"list pods\): 127.0.0.1:\d+: Failed"):
        list_items(api, "/api/v1/pods", resource="pods", fieldSelector="spec.nodeName=n1")
    assert "Retrying" not in caplog.text


def test_only_the_thread_that_asks_for_it_is_unlogged(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("some.library")

    def others() -> None:
        log.warning("of another thread")

    with unlogged("some.library"), unlogged("some.library"):
        log.warning("of this one")
        thread = threading.Thread(target=others)
        thread.start()
        thread.join()
    log.warning("after it")
    assert [record.getMessage() for record in caplog.records] == ["of another thread", "after it"]
