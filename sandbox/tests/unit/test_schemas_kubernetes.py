"""The judge of writes to a cluster, by its API server's audit log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_gpu_provider.cluster.api.rest import USER_AGENT
from gpu_sandbox.schemas.findings import FOLDER_VARIABLE, FindingsFolder
from gpu_sandbox.schemas.kubernetes import judged_log

UNKNOWN = 'Pod in version "v1" cannot be handled as a Pod: strict decoding error: unknown field "spec.gpus"'


def event(*, query: str = "fieldValidation=Strict", client: str = USER_AGENT, **more: Any) -> dict[str, Any]:
    written = {
        "stage": "ResponseComplete",
        "verb": "create",
        "requestURI": f"/api/v1/namespaces/default/pods?{query}",
        "userAgent": client,
        "objectRef": {"resource": "pods"},
        "responseStatus": {"code": 201},
    }
    return written | more


@pytest.mark.parametrize(
    ("written", "wrong"),
    [
        (event(), []),
        (event(query="pretty=true"), ["its fieldValidation is None, not Strict"]),
        (event(query="fieldValidation=Warn"), ["its fieldValidation is ['Warn'], not Strict"]),
        (event(responseStatus={"code": 400, "message": UNKNOWN}), [UNKNOWN]),
        (event(responseStatus={"code": 422, "message": "Pod is invalid: spec.containers: Required value"}), []),
        (event(query="", client="kubectl/v1.36"), []),
        (event(query="", verb="delete"), []),
        (event(query="", stage="ResponseStarted"), []),
    ],
)
def test_each_write_of_ours_asks_for_the_servers_schema_and_is_within_it(
    tmp_path: Path, written: dict[str, Any], wrong: list[str]
) -> None:
    found = FindingsFolder(tmp_path)
    log = tmp_path / "server.audit.jsonl"
    log.write_text(json.dumps(written) + "\n" + '{"verb": "cre')
    assert [what for each in found.new_violations() for what in each.wrong] == wrong
    assert found.new_violations() == []
    is_ours = written["userAgent"] == USER_AGENT and written["verb"] != "delete"
    is_ours &= written["stage"] == "ResponseComplete"
    assert found.counts() == ({"Kubernetes write": 1} if is_ours else {})


def test_a_line_is_read_once_it_is_whole(tmp_path: Path) -> None:
    found, log = FindingsFolder(tmp_path), tmp_path / "server.audit.jsonl"
    line = json.dumps(event(query="")) + "\n"
    log.write_text(line[:20])
    assert found.new_violations() == []
    log.write_text(line)
    assert [str(each) for each in found.new_violations()] == [
        "Kubernetes write of create pods: its fieldValidation is None, not Strict"
    ]


def test_each_api_servers_log_is_judged_only_where_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE)
    assert judged_log() is None
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    logs = [judged_log(), judged_log()]
    assert logs[0] != logs[1]
    assert all(log and log.parent == tmp_path for log in logs)
