"""The EKS token is not logged while it is made, however talkative botocore is."""

from __future__ import annotations

import base64
import json
import logging
from urllib.parse import parse_qs, urlsplit

import pytest

from airflow_gpu_provider.clouds.aws import clients as aws_clients

CONNECTION = {"conn_type": "aws", "login": "AKIAEXAMPLE", "password": "secret", "extra": {"region_name": "us-west-2"}}


def signature_of(token: str) -> str:
    encoded = token.removeprefix("k8s-aws-v1.")
    url = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
    (signature,) = parse_qs(urlsplit(url).query)["X-Amz-Signature"]
    return signature


def test_neither_the_signature_nor_what_it_signs_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_TRAIN", json.dumps(CONNECTION))
    clients = aws_clients.AwsClients(conn_id="train", region="us-west-2")
    with caplog.at_level(logging.DEBUG), caplog.at_level(logging.DEBUG, "botocore"):
        signature = signature_of(clients.cluster_token("ml"))
        logging.getLogger("botocore.auth").debug("what others sign")
    assert signature not in caplog.text
    assert "GetCallerIdentity" not in caplog.text
    assert "what others sign" in caplog.text
