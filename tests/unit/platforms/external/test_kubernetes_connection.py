"""What a Kubernetes connection says about the way to a cluster: every field of a kubeconfig counts, or is refused.

What the API server refuses is read from the connection again, its files too.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_gpu_provider.cluster.access import ClusterAccess
from airflow_gpu_provider.cluster.credentials import Credentials
from airflow_gpu_provider.errors import ConnectionNotFound, CredentialsError
from airflow_gpu_provider.platforms.external.platform import access_from_connection

SERVER = "https://10.0.0.1:6443"


def kubeconfig(user: dict[str, Any], **cluster: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "lab",
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "u"}}],
        "clusters": [{"name": "lab", "cluster": {"server": SERVER, **cluster}}],
        "users": [{"name": "u", "user": user}],
    }


def connect(monkeypatch: pytest.MonkeyPatch, **extra: Any) -> ClusterAccess:
    monkeypatch.setenv("AIRFLOW_CONN_LAB", json.dumps({"conn_type": "kubernetes", "extra": extra}))
    return access_from_connection("lab", None)


def token_of(access: ClusterAccess) -> str:
    assert access.token is not None
    return access.token()


@pytest.mark.parametrize("in_file", [True, False], ids=["file", "connection"])
def test_way_to_the_cluster_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, in_file: bool) -> None:
    way = {"tls-server-name": "kubernetes.lab.example.com", "proxy-url": "http://proxy.example.com:3128"}
    config = kubeconfig({"token": "t"}, **way)
    (tmp_path / "config").write_text(json.dumps(config))
    extra = {"kube_config_path": str(tmp_path / "config")} if in_file else {"kube_config": config}
    access = connect(monkeypatch, **extra)
    assert (access.server, access.tls_server_name, access.proxy_url) == (SERVER, *way.values())
    assert token_of(access) == "t"


def test_token_is_read_from_its_file_each_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(json.dumps(kubeconfig({"tokenFile": "token", "token": "of the first day"})))
    (tmp_path / "token").write_text("first\n")  # beside the kubeconfig, which names it by a relative path
    access = connect(monkeypatch, kube_config_path=str(tmp_path / "config"))
    assert token_of(access) == "first"
    (tmp_path / "token").write_text("second\n")
    assert token_of(access) == "second"
    (tmp_path / "token").unlink()
    assert token_of(access) == "of the first day"


def test_token_file_without_a_token_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first")
    access = connect(monkeypatch, kube_config=kubeconfig({"tokenFile": str(file)}))
    file.write_text("\n")
    with pytest.raises(CredentialsError, match=rf"tokenFile {file}, which has no token: it is empty"):
        token_of(access)


def test_everything_is_read_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("airflow_gpu_provider.platforms.from_connection.AGAIN_AFTER", 0.0)
    certificate, key = tmp_path / "client.crt", tmp_path / "client.key"
    user = {"client-certificate": str(certificate), "client-key": str(key)}
    certificate.write_text("old")
    key.write_text("old")
    access = connect(monkeypatch, kube_config=kubeconfig(user))
    certificate.write_text("new")
    key.write_text("new")
    assert access.again is not None
    renewed = access.again()
    assert base64.b64decode(renewed.client_certificate_data) == base64.b64decode(renewed.client_key_data) == b"new"
    connect(monkeypatch, kube_config=kubeconfig({"token": "another"}))
    assert renewed.again is not None
    assert token_of(renewed.again()) == "another"


def test_a_token_that_was_replaced_in_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    credentials = Credentials(connect(monkeypatch, kube_config=kubeconfig({"token": "old"})))
    shown = credentials.get()
    connect(monkeypatch, kube_config=kubeconfig({"token": "new"}))
    renewed = credentials.after(shown)
    assert renewed is not None
    assert (shown.token, renewed.token) == ("old", "new")


def test_a_login_that_was_renewed_in_the_file_that_the_connection_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(kubeconfig({"token": "expired"})))
    credentials = Credentials(connect(monkeypatch, kube_config_path=str(path)))
    shown = credentials.get()
    path.write_text(yaml.safe_dump(kubeconfig({"token": "renewed"})))
    renewed = credentials.after(shown)
    assert renewed is not None
    assert renewed.token == "renewed"


def test_a_certificate_that_was_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    def certified(name: str) -> dict[str, Any]:
        return kubeconfig({"client-certificate-data": name, "client-key-data": "S0VZ"})

    credentials = Credentials(connect(monkeypatch, kube_config=certified("T0xE")))
    shown = credentials.get()
    connect(monkeypatch, kube_config=certified("TkVX"))
    renewed = credentials.after(shown)
    assert renewed is not None
    certificates = [shown.access.client_certificate_data, renewed.access.client_certificate_data]
    assert certificates == ["T0xE", "TkVX"]


def test_a_connection_that_is_gone_for_a_moment_is_read_once_more_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """`airflow connections delete` and `add` is how a connection is replaced."""
    credentials = Credentials(connect(monkeypatch, kube_config=kubeconfig({"token": "old"})))
    shown = credentials.get()
    monkeypatch.delenv("AIRFLOW_CONN_LAB")
    with pytest.raises(ConnectionNotFound):
        credentials.after(shown)
    connect(monkeypatch, kube_config=kubeconfig({"token": "new"}))
    monkeypatch.setattr("airflow_gpu_provider.platforms.from_connection.AGAIN_AFTER", 0.0)
    renewed = credentials.after(shown)
    assert renewed is not None
    assert renewed.token == "new"


@pytest.mark.parametrize(
    ("user", "cluster", "says"),
    [
        ({"token": "t", "as": "somebody"}, {}, "impersonates somebody"),
        ({"token": "t", "as-groups": ["system:masters"]}, {}, "impersonates somebody"),
        ({"username": "u", "password": "p"}, {}, "a user name and a password"),
        ({"token": "t"}, {"proxy-url": "socks5://proxy.example.com:1080"}, "a proxy-url of the scheme socks5"),
        ({"token": "t"}, {"insecure-skip-tls-verify": True}, "does not verify"),
        ({"tokenFile": "/no/such/file"}, {}, "/no/such/file"),
        ({"client-certificate": "/no/such/file", "client-key": "/no/such/file"}, {}, "/no/such/file"),
    ],
)
def test_what_is_not_supported_is_refused(
    monkeypatch: pytest.MonkeyPatch, user: dict[str, Any], cluster: dict[str, Any], says: str
) -> None:
    with pytest.raises(CredentialsError, match=says):
        connect(monkeypatch, kube_config=kubeconfig(user, **cluster))


def test_missing_connection_is_an_error() -> None:
    with pytest.raises(ConnectionNotFound):
        access_from_connection("lab", None)
