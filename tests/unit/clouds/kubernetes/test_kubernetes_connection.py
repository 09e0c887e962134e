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

from airflow_gpu_provider.clouds.kubernetes.kubernetes_connection import access_from_connection
from airflow_gpu_provider.cluster.api.access import ClusterAccess, Credentials
from airflow_gpu_provider.errors import ConnectionNotFound, CredentialsError
from gpu_sandbox.pki import CertificateAuthority

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
    monkeypatch.setattr("airflow_gpu_provider.clouds.from_connection.AGAIN_AFTER", 0.0)
    authority = CertificateAuthority(tmp_path / "pki", name="lab")
    certificate, key = tmp_path / "client.crt", tmp_path / "client.key"
    user = {"client-certificate": str(certificate), "client-key": str(key)}

    def renew(name: str) -> bytes:
        pair = authority.client(name, user=name)
        certificate.write_bytes(pair.certificate)
        key.write_bytes(pair.key)
        return pair.certificate + pair.key

    renew("old")
    access = connect(monkeypatch, kube_config=kubeconfig(user))
    new = renew("new")
    assert access.again is not None
    renewed = access.again()
    assert b"".join(map(base64.b64decode, (renewed.client_certificate_data, renewed.client_key_data))) == new
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


def test_a_certificate_that_was_renewed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path / "pki", name="lab")

    def certified(name: str) -> dict[str, Any]:
        pair = authority.client(name, user=name)
        data = {"client-certificate-data": pair.certificate, "client-key-data": pair.key}
        return kubeconfig({field: base64.b64encode(content).decode() for field, content in data.items()})

    old, new = certified("old"), certified("new")
    credentials = Credentials(connect(monkeypatch, kube_config=old))
    shown = credentials.get()
    connect(monkeypatch, kube_config=new)
    renewed = credentials.after(shown)
    assert renewed is not None
    certificates = [shown.access.client_certificate_data, renewed.access.client_certificate_data]
    assert certificates == [each["users"][0]["user"]["client-certificate-data"] for each in (old, new)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("apiVersion: v1\nclusters:\n- cluster:\n    server: 'https://10.0", "unexpected end of stream"),
        (json.dumps(kubeconfig({"token": "t"}))[:200], "unexpected end of stream"),
        (json.dumps(kubeconfig({"token": "t"}) | {"users": []}), "with name u"),
        ("hello", "does not configure access to a cluster"),
    ],
    ids=["empty", "YAML", "JSON", "no user yet", "text"],
)
def test_a_kubeconfig_that_is_being_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, says: str
) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(kubeconfig({"token": "expired"})))
    monkeypatch.setattr("airflow_gpu_provider.clouds.from_connection.AGAIN_AFTER", 0.0)
    credentials = Credentials(connect(monkeypatch, kube_config_path=str(path)))
    shown = credentials.get()
    path.write_text(text)
    with pytest.raises(CredentialsError, match=says) as caught:
        credentials.after(shown)
    assert "\n" not in str(caught.value)
    path.write_text(yaml.safe_dump(kubeconfig({"token": "renewed"})))
    renewed = credentials.after(shown)
    assert renewed is not None
    assert renewed.token == "renewed"


@pytest.mark.parametrize("says", ["echo not logged in >&2; exit 1", "echo '{\"status\": {}}'", "echo hello"])
def test_a_plugin_that_gives_nothing_is_no_login_of_nobody(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: str
) -> None:
    """The client goes on without a token, and the API server's answer is that system:anonymous may not."""
    plugin = tmp_path / "plugin"
    token = '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "t"}}'
    plugin.write_text(f"#!/bin/sh\necho '{token}'\n")
    plugin.chmod(0o755)
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin)}}
    credentials = Credentials(connect(monkeypatch, kube_config=kubeconfig(user)))
    shown = credentials.get()
    assert shown.token == "t"
    plugin.write_text(f"#!/bin/sh\n{says}\n")
    with pytest.raises(CredentialsError, match=f"the plugin {plugin} of its kubeconfig returned no credentials"):
        credentials.after(shown)


@pytest.mark.parametrize("kind", ["exec", "auth-provider"])
@pytest.mark.parametrize("in_file", [True, False], ids=["file", "connection"])
def test_no_command_is_run_where_the_configuration_forbids_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, in_file: bool
) -> None:
    plugin, ran = tmp_path / "plugin", tmp_path / "ran"
    plugin.write_text(f"#!/bin/sh\ntouch {ran}\n")
    plugin.chmod(0o755)
    users: dict[str, Any] = {
        "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin)},
        "auth-provider": {"name": "gcp", "config": {"cmd-path": str(plugin)}},
    }
    (tmp_path / "config").write_text(json.dumps(kubeconfig({kind: users[kind]})))
    extra = (
        {"kube_config_path": str(tmp_path / "config")} if in_file else {"kube_config": kubeconfig({kind: users[kind]})}
    )
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__EXEC_PLUGINS", "False")
    with pytest.raises(CredentialsError, match=rf"connection lab: its kubeconfig runs {plugin}, and \[gpu_provider\]"):
        connect(monkeypatch, **extra)
    assert not ran.exists()
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__EXEC_PLUGINS", "True")
    with pytest.raises(CredentialsError):  # it has run, and given nothing
        connect(monkeypatch, **extra)
    assert ran.exists()


@pytest.mark.parametrize("user", [{"token": "t"}, {"tokenFile": "/no/such/file", "token": "t"}], ids=["token", "file"])
def test_a_token_does_not_go_over_the_network_unencrypted(
    monkeypatch: pytest.MonkeyPatch, user: dict[str, Any]
) -> None:
    for server in ("http://10.0.0.1:8080", "HTTP://kubernetes.lab.example.com", "http://127.0.0.1.example.com"):
        with pytest.raises(CredentialsError, match="would travel unencrypted"):
            connect(monkeypatch, kube_config=kubeconfig(user, server=server))
        connect(monkeypatch, kube_config=kubeconfig({}, server=server))
    for server in ("http://127.0.0.1:8001", "http://localhost:8001", "http://[::1]:8001"):
        assert connect(monkeypatch, kube_config=kubeconfig(user, server=server)).server == server


@pytest.mark.parametrize(
    "server",
    [
        "10.0.0.1:6443",
        "//10.0.0.1:6443",
        "ws://10.0.0.1:6443",
        "https://admin:SECRET@10.0.0.1",
        "https://10.0.0.1/?key=SECRET",
        "https://10.0.0.1:port",
        "https://",
    ],
)
def test_a_server_is_an_address_without_a_login(monkeypatch: pytest.MonkeyPatch, server: str) -> None:
    """The clients take what has no scheme for HTTP; and what has a login or a key is quoted by errors."""
    with pytest.raises(CredentialsError, match="has a server that is not an address") as error:
        connect(monkeypatch, kube_config=kubeconfig({"token": "t"}, server=server))
    assert "SECRET" not in str(error.value)


def test_fields_that_are_null_are_as_if_they_were_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing: dict[str, Any] = {"tls-server-name": None, "proxy-url": None, "certificate-authority-data": None}
    access = connect(monkeypatch, kube_config=kubeconfig({"token": "t", "tokenFile": None, "exec": None}, **nothing))
    assert token_of(access) == "t"
    assert (access.tls_server_name, access.proxy_url, access.ca_data) == ("", "", "")


def test_a_connection_that_is_gone_for_a_moment_is_read_once_more_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """`airflow connections delete` and `add` is how a connection is replaced."""
    credentials = Credentials(connect(monkeypatch, kube_config=kubeconfig({"token": "old"})))
    shown = credentials.get()
    monkeypatch.delenv("AIRFLOW_CONN_LAB")
    with pytest.raises(ConnectionNotFound):
        credentials.after(shown)
    connect(monkeypatch, kube_config=kubeconfig({"token": "new"}))
    monkeypatch.setattr("airflow_gpu_provider.clouds.from_connection.AGAIN_AFTER", 0.0)
    renewed = credentials.after(shown)
    assert renewed is not None
    assert renewed.token == "new"


@pytest.mark.parametrize(
    ("user", "cluster", "says"),
    [
        ({"token": "t", "as": "somebody"}, {}, "uses impersonation"),
        ({"token": "t", "as-groups": ["system:masters"]}, {}, "uses impersonation"),
        ({"username": "u", "password": "p"}, {}, "a user name and a password"),
        ({"token": "t"}, {"proxy-url": "socks5://proxy.example.com:1080"}, "a proxy-url of the scheme socks5"),
        ({"token": "t"}, {"insecure-skip-tls-verify": True}, "does not verify"),
        ({"token": "t"}, {"server": None}, "names no server"),
        ({"token": "t"}, {"certificate-authority-data": "Q0E="}, "has incomplete certificates"),
        ({"client-certificate-data": "Q0VSVA==", "client-key-data": "S0VZ"}, {}, "has incomplete certificates"),
        ({"tokenFile": "/no/such/file"}, {}, "/no/such/file"),
        ({"client-certificate": "/no/such/file", "client-key": "/no/such/file"}, {}, "/no/such/file"),
    ],
)
def test_what_is_not_supported_is_refused(
    monkeypatch: pytest.MonkeyPatch, user: dict[str, Any], cluster: dict[str, Any], says: str
) -> None:
    with pytest.raises(CredentialsError, match=says):
        connect(monkeypatch, kube_config=kubeconfig(user, **cluster))


def test_an_auth_provider_s_own_error_is_one_of_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/no/such/key.json")
    with pytest.raises(CredentialsError, match=r"does not configure access to a cluster: .*/no/such/key\.json"):
        connect(monkeypatch, kube_config=kubeconfig({"auth-provider": {"name": "gcp", "config": {}}}))


def test_a_kubeconfig_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CredentialsError, match="there is no file /no/such/file"):
        connect(monkeypatch, kube_config_path="/no/such/file")


def test_missing_connection_is_an_error() -> None:
    with pytest.raises(ConnectionNotFound):
        access_from_connection("lab", None)
