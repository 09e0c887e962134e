"""The code of a try, against an API server: taken once, mounted by all of its attempts, gone when the task ends."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from airflow_gpu_provider.cluster.api.code_requests import list_code
from airflow_gpu_provider.errors import PodFailed, TaskKilled
from airflow_gpu_provider.training.code.code_files import Code, CodeFile
from airflow_gpu_provider.training.life import code_of_try
from airflow_gpu_provider.training.life.code_of_try import code_volume, delete_code_quietly
from airflow_gpu_provider.triggers import pod as pod_trigger
from airflow_gpu_provider.triggers.pod import GpuPodTrigger
from tests.fakes.api_server import ApiServer
from tests.fakes.clients import FakeApiClient
from tests.unit.training.pod_life import AWAY, FAILED, OWNER, Life, event
from tests.unit.training.pod_life import nodes as nodes
from tests.unit.training.test_pod_end import pod, running

SECRETS = tuple((f"{number:02}.key", "secret") for number in range(22))


@pytest.fixture
def api() -> Any:
    server = ApiServer()
    for name in ("airflow-gpu-provider", "ml"):
        server.put(f"/api/v1/namespaces/{name}", {"metadata": {"name": name}})
    return FakeApiClient(server)


class ATry:
    """What a try's Run has of its code; `text` is that of its one file."""

    def __init__(self, api: Any, text: str = "first") -> None:
        self.text = text
        self.lines: list[str] = []
        log = SimpleNamespace(info=self._say, warning=self._say)
        self.run: Any = SimpleNamespace(
            cluster=SimpleNamespace(api=api), log=log, stop=SimpleNamespace(error=None), take_code=self._take
        )

    def _say(self, words: str, *args: Any) -> None:
        self.lines.append(words % args)

    def _take(self) -> Code:
        files = (CodeFile(path="train.py", data=self.text.encode()),)
        return Code(files=files, left_out=(*SECRETS, ("data/", ".gpuignore"), ("a.pyc", "made by Python")))


def texts(api: Any) -> list[str]:
    return [each["data"]["f0001"] for each in api.server.named("api/v1/configmaps").values()]


def test_all_attempts_of_a_try_mount_what_its_first_has_taken(api: Any) -> None:
    first, elsewhere = ATry(api), ATry(api, "changed")
    volume = code_volume(first.run, OWNER, "ml")
    assert code_volume(elsewhere.run, replace(OWNER, attempt=2), "ml") == volume
    assert texts(api) == ["first"]
    assert elsewhere.lines[0].startswith("The code is that with which this try began: code-")
    assert code_volume(elsewhere.run, replace(OWNER, try_id="t2"), "ml") != volume
    assert texts(api) == ["first", "changed"]


def test_the_log_names_what_was_left_out(api: Any) -> None:
    a_try = ATry(api)
    code_volume(a_try.run, OWNER, "ml")
    taken, secret, ignored = a_try.lines
    assert taken == "Mounting the code at /app: 1 file, 1 KiB, in 1 ConfigMap in ml."
    assert secret.startswith("Left out of the code, it may be secret: 00.key, 01.key, ")
    assert secret.endswith("19.key and 2 more.")
    assert ignored == "Left out of the code, by .gpuignore: data/."


def test_the_end_of_a_task_deletes_what_all_of_its_tries_have_left(api: Any) -> None:
    a_try = ATry(api)
    for owner in (OWNER, replace(OWNER, try_id="t0"), replace(OWNER, task_id="another", try_id="t9")):
        code_volume(a_try.run, owner, "ml")
    delete_code_quietly(a_try.run, OWNER)
    (left,) = list_code(api, OWNER.key.pool)
    assert left.try_id == "t9"


def test_code_that_cannot_be_deleted_does_not_hide_how_the_task_ended(api: Any) -> None:
    a_try = ATry(api)
    code_volume(a_try.run, OWNER, "ml")
    a_try.run.stop.error = TaskKilled("It was.")
    api.server.refuse("delete")
    delete_code_quietly(a_try.run, OWNER)
    assert len(list_code(api, OWNER.key.pool)) == 1
    assert "stay until its run is released" in a_try.lines[-1]


# -- when that is ----------------------------------------------------------------------------------------------


@pytest.fixture
def deleted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    deleted: list[str] = []
    monkeypatch.setattr(code_of_try, "delete_code_of_task", lambda api, pool, task: deleted.append(task))
    monkeypatch.setattr(pod_trigger, "delete_code_of_task", lambda api, pool, task: deleted.append(task))
    monkeypatch.setattr(pod_trigger, "cluster_access", lambda _: SimpleNamespace(api_client=lambda: None))
    return deleted


def with_code(life: Life) -> Life:
    life.run = replace(life.run, take_code=lambda: Code(files=()))
    life.tries = life.continued({})
    return life


def test_it_goes_when_the_training_has_ended_and_not_before(nodes: list[set[str]], deleted: list[str]) -> None:
    waiting = with_code(Life(pod(running())))
    with pytest.raises(TaskDeferred):
        waiting.tries.resume(event("error", AWAY))
    assert deleted == []
    assert waiting.records[0]["code_of"] == OWNER.task
    with pytest.raises(PodFailed):
        with_code(Life(FAILED)).tries.resume(event("failed", PodFailed("It failed.", exit_code=3)))
    assert deleted == [OWNER.task]


def test_a_task_without_code_asks_for_none(nodes: list[set[str]], deleted: list[str]) -> None:
    life = Life(FAILED)
    with pytest.raises(PodFailed):
        life.tries.resume(event("failed", PodFailed("It failed.", exit_code=3)))
    assert deleted == []


def test_a_pod_that_runs_on_after_its_task_keeps_its_code(nodes: list[set[str]], deleted: list[str]) -> None:
    life = with_code(Life(FAILED, is_kept_when_killed=True))
    life.fails["on_pod_creation"] = TaskKilled("It was.")
    life.tries.kill()
    with pytest.raises(TaskKilled):
        life.tries.run()
    assert deleted == []


def test_a_trigger_deletes_the_code_that_its_record_names(deleted: list[str]) -> None:
    waiting = with_code(Life(pod(running())))
    with pytest.raises(TaskDeferred):
        waiting.tries.resume(event("error", AWAY))
    GpuPodTrigger({**waiting.records[0], "version": 1})._delete_code(waiting.records[0]["code_of"])
    assert deleted == [OWNER.task]
