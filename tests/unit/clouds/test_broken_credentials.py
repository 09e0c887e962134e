"""What cannot be parsed is never quoted: kubeconfigs, user data, manifests and connections, broken at each place.

Each error is looked through as Airflow shows it: message, record of XCom and of a trigger's event, notification,
traceback with its causes, and what was logged meanwhile.
"""

from __future__ import annotations

import json
import logging
import re
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider.clouds.aws.user_data import from_text
from airflow_gpu_provider.clouds.kubernetes.kubernetes_connection import access_from_connection
from airflow_gpu_provider.errors import CredentialsError, GpuError, PoolSpecError
from airflow_gpu_provider.notifications.night import Failure, night
from airflow_gpu_provider.parse_errors import NotParsed, parsed
from airflow_gpu_provider.training.place.manifest import read_manifest
from tests.unit.clouds.aws.test_eks_pool import pool

SECRET = "Zq7xW2-TOKEN-Vk9"
PARTS = re.compile("|".join(SECRET[begin : begin + 5] for begin in range(len(SECRET) - 4)))
CONFIG: dict[str, Any] = {
    "apiVersion": "v1",
    "current-context": "lab",
    "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "u"}}],
    "clusters": [{"name": "lab", "cluster": {"server": "https://10.0.0.1:6443"}}],
    "users": [{"name": "u", "user": {"token": SECRET}}],
}
HEAD = "apiVersion: v1\nusers:\n- name: u\n  user:\n    token: "
BROKEN_YAML = {
    "quote that is not closed": f'{HEAD}"{SECRET}\n',
    "colon": f"{HEAD}{SECRET}: more\n",
    "percent": f"{HEAD}%{SECRET}\n",
    "tab": f"{HEAD}{SECRET}\n\tx: 1\n",
    "indentation": f"{HEAD}{SECRET}\n   x: y\n",
    "alias": f"{HEAD}*{SECRET}\n",
    "tag": f"{HEAD}!{SECRET} x\n",
    "tag handle": f"{HEAD}!{SECRET.replace('-', '')}!x y\n",
    "number": f"{HEAD}!!int {SECRET}\n",
    "truth": f"{HEAD}!!bool {SECRET}\n",
    "binary": f"{HEAD}!!binary {SECRET}é\n",
    "time": f"{HEAD}!!timestamp {SECRET}\n",
    "control character": f"{HEAD}{SECRET}\x07\n",
    "escape": f'{HEAD}"\\z{SECRET}"\n',
    "text": SECRET,
}


def with_user(user: Any, **cluster: Any) -> dict[str, Any]:
    clusters = [{"name": "lab", "cluster": {"server": "https://10.0.0.1:6443", **cluster}}]
    return {**CONFIG, "users": [{"name": "u", "user": user}], "clusters": clusters}


WRONG: dict[str, dict[str, Any]] = {
    "user is a text": with_user(SECRET),
    "token is a list": with_user({"token": [SECRET]}),
    "token in two lines": with_user({"token": f"{SECRET}\n{SECRET}"}),
    "token that is not ASCII": with_user({"token": f"{SECRET}\u2026"}),
    "key instead of its file": with_user({"client-key": f"-----BEGIN KEY-----\n{SECRET}", "client-certificate": "c"}),
    "key data": with_user({"client-certificate-data": "Q0E=", "client-key-data": f"{SECRET}é"}),
    "certificate data": with_user({"token": "t"}, **{"certificate-authority-data": SECRET}),
    "exec is a text": with_user({"exec": SECRET}),
    "plugin without a command": with_user({"exec": {"env": [{"name": "A", "value": SECRET}]}}),
    "plugin's arguments": with_user({"exec": {"command": "/no/such", "apiVersion": "v1", "args": {"a": SECRET}}}),
    "provider without a configuration": with_user(
        {"auth-provider": {"name": "gcp", "x": SECRET}, "exec": {"x": SECRET}}
    ),
    "proxy's login without a scheme": with_user({"token": "t"}, **{"proxy-url": f"u:{SECRET}@proxy:3128"}),
    "proxy's login with a wrong port": with_user({"token": "t"}, **{"proxy-url": f"http://u:{SECRET}@proxy:x"}),
    "context is an object": {**CONFIG, "current-context": {"token": SECRET}},
    "context's user is an object": {
        **CONFIG,
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": {"token": SECRET}}}],
    },
    "context without a cluster": {**CONFIG, "contexts": [{"name": "lab", "context": {"user": "u"}, "x": SECRET}]},
    "users is a text": {**CONFIG, "users": SECRET},
}


def shown(error: BaseException) -> Iterator[str]:
    yield "".join(traceback.format_exception(error))
    causes: list[BaseException | None] = [error]
    while (cause := causes.pop()) is not None:  # what a log of another kind may follow: causes, and suppressed ones not
        yield from (str(cause), repr(cause))
        causes.append(cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__))
    if isinstance(error, GpuError):
        yield json.dumps(error.to_record(), ensure_ascii=False)
        failed = Failure(task="train", type=type(error).__name__, what=error.what, fix=error.fix)
        yield night(dag_id="d", run_id="r", state="failed", failures=[failed]).in_words


def assert_not_quoted(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    for text in (*shown(error), caplog.text, *(repr(record.args) for record in caplog.records)):
        assert not PARTS.search(text), text
    caplog.clear()


@pytest.fixture(autouse=True)
def at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def refused(monkeypatch: pytest.MonkeyPatch, conn_type: str = "kubernetes", **extra: Any) -> CredentialsError:
    monkeypatch.setenv("AIRFLOW_CONN_LAB", json.dumps({"conn_type": conn_type, "extra": extra}))
    with pytest.raises(CredentialsError) as caught:
        access_from_connection("lab", None).api_client()
    return caught.value


@pytest.mark.parametrize("in_file", [True, False], ids=["file", "connection"])
@pytest.mark.parametrize("text", BROKEN_YAML.values(), ids=BROKEN_YAML)
def test_a_kubeconfig_that_is_not_yaml(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, in_file: bool
) -> None:
    (tmp_path / "config").write_text(text)
    extra = {"kube_config_path": str(tmp_path / "config")} if in_file else {"kube_config": text}
    assert_not_quoted(refused(monkeypatch, **extra), caplog)


@pytest.mark.parametrize("in_file", [True, False], ids=["file", "connection"])
@pytest.mark.parametrize("config", WRONG.values(), ids=WRONG)
def test_a_kubeconfig_with_other_types_than_its_own(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    config: dict[str, Any],
    in_file: bool,
) -> None:
    (tmp_path / "config").write_text(json.dumps(config))
    extra = {"kube_config_path": str(tmp_path / "config")} if in_file else {"kube_config": config}
    assert_not_quoted(refused(monkeypatch, **extra), caplog)


@pytest.mark.parametrize("dump", [json.dumps, yaml.safe_dump])
def test_a_kubeconfig_that_is_cut_off_anywhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, dump: Callable[[Any], str]
) -> None:
    text = dump(CONFIG)
    for end in range(text.index(SECRET) + 5, len(text) - 1, 3):
        monkeypatch.setenv("AIRFLOW_CONN_LAB", json.dumps({"extra": {"kube_config": text[:end]}}))
        try:
            access_from_connection("lab", None)
        except CredentialsError as error:
            assert_not_quoted(error, caplog)


@pytest.mark.parametrize(
    ("config", "place"),
    [
        (f"a: 1\nb: {SECRET}: c", "line 2, column 20: mapping values are not allowed here"),
        ('{"a": [1', "line 1, column 9: expected ',' or ']', but got <stream end>"),
        (WRONG["token is a list"], "users[0].user.token is a list, not a text"),
    ],
)
def test_the_place_is_told(monkeypatch: pytest.MonkeyPatch, config: Any, place: str) -> None:
    assert place in str(refused(monkeypatch, kube_config=config))


def test_a_token_file_that_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "token").write_bytes(b"\xff" + SECRET.encode())
    error = refused(monkeypatch, kube_config=with_user({"tokenFile": str(tmp_path / "token")}))
    assert "it is not in utf-8, at position 0" in str(error)
    assert_not_quoted(error, caplog)


@pytest.mark.parametrize("conn_type", ["kubernetes", "aws", "google_cloud_platform"])
@pytest.mark.parametrize("extra", [f'{{"aws_secret_access_key": "{SECRET}', f'"{SECRET}"', f'["{SECRET}"]'])
def test_an_extra_that_is_no_json_object_is_not_taken_for_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, conn_type: str, extra: str
) -> None:
    """Without it the hooks take the worker's own credentials."""
    monkeypatch.setenv("AIRFLOW_CONN_LAB", json.dumps({"conn_type": conn_type, "extra": extra}))
    with pytest.raises(CredentialsError, match="The extra of Airflow connection lab is not a JSON object: ") as caught:
        open_connection(conn_type)
    assert_not_quoted(caught.value, caplog)


def open_connection(conn_type: str) -> None:
    if conn_type == "aws":
        from airflow_gpu_provider.clouds.aws.clients import AwsClients

        AwsClients(conn_id="lab", region="us-west-2").cluster_token("ml")
    elif conn_type == "google_cloud_platform":
        from airflow_gpu_provider.clouds.google.clients import GoogleClients

        GoogleClients(conn_id="lab", impersonation_chain=None).access_token()
    else:
        access_from_connection("lab", None)


KEY_FILE = {"type": "service_account", "private_key": SECRET, "client_email": "a@b.example", "token_uri": "https://t"}


@pytest.mark.parametrize(
    ("conn_type", "extra"),
    [
        (
            "aws",
            {"aws_access_key_id": "AKIA", "aws_secret_access_key": "s", "aws_session_token": f"{SECRET}\n{SECRET}"},
        ),
        ("aws", {"aws_access_key_id": f"{SECRET}\n", "aws_secret_access_key": SECRET}),
        ("aws", {"config_kwargs": SECRET}),
        ("google_cloud_platform", {"keyfile_dict": KEY_FILE}),
        ("google_cloud_platform", {"keyfile_dict": {**KEY_FILE, "private_key": [SECRET]}}),
        ("google_cloud_platform", {"keyfile_dict": json.dumps(SECRET)}),
        ("google_cloud_platform", {"keyfile_dict": {"key": SECRET}}),
        ("google_cloud_platform", {"key_path": json.dumps(KEY_FILE)}),
        ("google_cloud_platform", {"key_path": f"-----BEGIN KEY-----\n{SECRET}\n.json"}),
        ("google_cloud_platform", {"credential_config_file": json.dumps(KEY_FILE)[:-1]}),
    ],
)
def test_a_cloud_s_connection_with_a_broken_key(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, conn_type: str, extra: dict[str, Any]
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_LAB", json.dumps({"conn_type": conn_type, "extra": extra}))
    with pytest.raises(CredentialsError) as caught:
        open_connection(conn_type)
    assert_not_quoted(caught.value, caplog)


def test_a_google_key_that_is_cut_off_anywhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    text = json.dumps(KEY_FILE)
    for end in range(text.index(SECRET) + 5, len(text), 12):
        extra = {"keyfile_dict": text[:end]}
        monkeypatch.setenv("AIRFLOW_CONN_LAB", json.dumps({"conn_type": "google_cloud_platform", "extra": extra}))
        with pytest.raises(CredentialsError) as caught:
            open_connection("google_cloud_platform")
        assert_not_quoted(caught.value, caplog)


@pytest.mark.parametrize("text", [*BROKEN_YAML.values(), f"kind: {SECRET}", f"spec: {{kubelet: {{flags: {SECRET}}}}}"])
def test_user_data_in_yaml(caplog: pytest.LogCaptureFixture, text: str) -> None:
    with pytest.raises(PoolSpecError) as caught:
        pool(user_data=text)
    assert_not_quoted(caught.value, caplog)


TOML = f'[settings.container-registry]\ncredentials = [{{registry = "r", auth = "{SECRET}"}}]\n'


@pytest.mark.parametrize(
    "text",
    [
        *(TOML[:end] for end in range(TOML.index("red"), len(TOML) - 1)),
        f'a = "{SECRET}"\na."{SECRET}" = 1',
        f'["{SECRET}"]\n["{SECRET}"]',
        f"x = {{'{SECRET}' = 1, '{SECRET}' = 2}}",
        f"settings.kubernetes = '{SECRET}'",
    ],
)
def test_user_data_in_toml(caplog: pytest.LogCaptureFixture, text: str) -> None:
    with pytest.raises(PoolSpecError) as caught:
        pool(ami_type="BOTTLEROCKET_x86_64_NVIDIA", user_data=text)
    assert_not_quoted(caught.value, caplog)


def test_user_data_that_another_program_wrote(caplog: pytest.LogCaptureFixture) -> None:
    for text in (f'{{"a": "{SECRET}', f'{{"a": "{SECRET}" x}}'):
        with pytest.raises(NotParsed) as caught:
            from_text(f"MIME-Version: 1.0\napplication/node.eks.aws\n\n{text}\n--airflow-gpu-provider")
        assert_not_quoted(caught.value, caplog)


@pytest.mark.parametrize("text", [text for name, text in BROKEN_YAML.items() if name != "text"])
def test_a_manifest_with_a_secret_in_its_environment(caplog: pytest.LogCaptureFixture, text: str) -> None:
    with pytest.raises(PoolSpecError, match="not valid YAML") as caught:
        read_manifest(text)
    assert_not_quoted(caught.value, caplog)


@given(st.text(max_size=30), st.sampled_from([json.loads, yaml.safe_load]))
def test_no_parser_s_error_has_the_text_in_it_nor_behind_it(around: str, parse: Callable[[str], Any]) -> None:
    with pytest.raises(NotParsed) as caught:
        parsed(parse, f"{around}\n{{'{SECRET}' {around} {SECRET}\x00")
    assert caught.value.__context__ is None
    assert not PARTS.search(repr(caught.value))
