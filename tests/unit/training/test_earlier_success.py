"""Which success of an earlier try a try collects: of no try before a clear, and of no other training."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from airflow.sdk import BaseOperator
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.client import V1EnvVar

from airflow_gpu_provider.cluster.model.pod_state import ATTEMPT_ANNOTATION, OWNER_ANNOTATION
from airflow_gpu_provider.cluster.model.uncollected import UNCOLLECTED
from airflow_gpu_provider.errors import PodFailed, PodPreempted
from airflow_gpu_provider.operators.gpu_pod import GpuPodOperator
from airflow_gpu_provider.operators.gpu_workload import GpuWorkloadOperator
from airflow_gpu_provider.tasks.next_try import next_try_within
from airflow_gpu_provider.training.life import collect
from airflow_gpu_provider.training.life.asked import Asked, digest_of
from airflow_gpu_provider.training.life.pod_attempt import PodAttempt
from tests.unit.training.pod_life import ENDED_WELL, FAILED, STATE, Life, nodes
from tests.unit.training.test_pod_placement import a_pool

__all__ = ["nodes"]


def left_by(asked: Asked, *, try_id: str, attempt: int = 1, is_collected: bool = False) -> dict[str, Any]:
    """Return the metadata of what a try has left."""
    notes = {**asked.annotations, OWNER_ANNOTATION: try_id, ATTEMPT_ANNOTATION: str(attempt)}
    if is_collected:
        del notes[UNCOLLECTED]
    return {"metadata": {"name": try_id, "namespace": "ml", "uid": f"of {try_id}", "annotations": notes}}


STEP = st.tuples(st.booleans(), st.sampled_from(["one", "other"]), st.booleans(), st.integers(1, 3))
"""Whether the task is cleared before a try, what that asks for, whether it is collected, and its last attempt."""


@given(st.integers(0, 3), st.lists(STEP, min_size=1, max_size=8))
def test_it_is_that_of_the_newest_try_since_the_last_clear_which_asked_for_the_same(
    retries: int, steps: list[tuple[bool, str, bool, int]]
) -> None:
    """Airflow: a clear sets max_tries to the number of the last try plus `retries`; a retry leaves it."""
    max_tries, there, since_clear = retries, [], []
    for number, (is_cleared, digest, is_collected, attempt) in enumerate(steps, 1):
        if is_cleared or number > max_tries + 1:
            max_tries, since_clear = number - 1 + retries, []
        ti: Any = SimpleNamespace(try_number=number, max_tries=max_tries)
        asked = Asked.of(ti, retries=retries, digest=digest)
        expected = [name for name, of, collected in since_clear if of == digest and not collected]
        found = asked.newest_of_earlier(there, try_id=f"try {number}")
        assert (found["metadata"]["name"] if found else None) == (expected[-1] if expected else None)
        there.insert(0, left_by(asked, try_id=f"try {number}", attempt=attempt, is_collected=is_collected))
        since_clear.append((f"try {number}", digest, is_collected))
        assert asked.newest_of_earlier(there, try_id=f"try {number}") is None, "it has one of its own"


FIRST = Asked(digest="d", try_number=1, first_try=1)
SECOND = Asked(digest="d", try_number=2, first_try=1)


@pytest.mark.parametrize(
    "notes", [{}, {"airflow-gpu-provider/try": "x"}, {"airflow-gpu-provider/try": "²"}, {UNCOLLECTED: None}]
)
def test_what_has_no_digest_or_was_edited_is_left(notes: dict[str, Any]) -> None:
    left = left_by(FIRST, try_id="t1")
    of_it = left["metadata"]["annotations"] | notes if notes else {}
    left["metadata"]["annotations"] = {name: value for name, value in of_it.items() if value is not None}
    assert SECOND.newest_of_earlier([left], try_id="t2") is None


def test_what_goes_is_left_and_of_two_attempts_the_later_is_collected() -> None:
    both = [left_by(FIRST, try_id="a", attempt=2), left_by(FIRST, try_id="b", attempt=10)]
    assert SECOND.newest_of_earlier(both, try_id="t2") is both[1]
    both[1]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert SECOND.newest_of_earlier(both, try_id="t2") is both[0]


def a_task(**changes: Any) -> GpuPodOperator:
    given = {"image": "train:1", "cmds": ["train"], "arguments": ["{{ ts }}"], "env_vars": {"A": "1"}}
    return GpuPodOperator(task_id="train", gpu_pool=a_pool(), **(given | changes))


def a_job(image: str) -> dict[str, Any]:
    container = {"name": "train", "image": image, "resources": {"limits": {"nvidia.com/gpu": 1}}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}},
    }


@pytest.mark.parametrize(
    "changes",
    [{"image": "train:2"}, {"cmds": ["test"]}, {"arguments": ["{{ ds }}"]}, {"env_vars": {"A": "2"}}, {"gpus": 2}],
)
def test_another_image_command_argument_variable_or_gpu_is_another_training(changes: dict[str, Any]) -> None:
    one, same = (a_task(env_vars=[V1EnvVar(name="A", value="1")]) for _ in range(2))
    assert one._digest == same._digest
    assert a_task(retries=3, startup_timeout_seconds=5)._digest == a_task()._digest
    assert a_task(**changes)._digest != a_task()._digest


def test_what_is_rendered_does_not_count_and_a_manifest_does() -> None:
    task = a_task()
    digest = task._digest
    task.render_template_fields({"ts": "2026-01-01"}, None)  # type: ignore[typeddict-unknown-key, typeddict-item]
    assert task.arguments == ["2026-01-01"]
    assert task._digest == digest
    one, same, other = (
        GpuWorkloadOperator(task_id="train", gpu_pool=a_pool(), manifest=a_job(image))._digest
        for image in ("train:1", "train:1", "train:2")
    )
    assert one == same != other


def test_what_cannot_be_compared_has_no_digest() -> None:
    assert digest_of({("a", "b"): 1}) == ""  # type: ignore[dict-item]
    assert digest_of({"a": {1, 2}}) == digest_of({"a": {2, 1}})
    assert not Asked(digest="", try_number=2, first_try=1).has_earlier


def second_try(state: Any, *, fails: dict[str, BaseException] | None = None, **changes: Any) -> tuple[Life, Any]:
    """Run a second try that finds a pod of the first in this state; return what it did, and its result."""
    life = Life(state, deferrable=False, **changes)
    object.__setattr__(life.run, "asked", SECOND)
    left = left_by(FIRST, try_id="another")
    life.fails = fails or {}
    life.objects.of_task = lambda *_: [{**left, STATE: state}] if "delete" not in life.steps else []
    life.objects.delete = life._step("delete")
    return life, life.tries.run


@pytest.mark.parametrize("deferrable", [True, False])
def test_a_success_is_collected_by_the_next_try_in_its_worker(deferrable: bool) -> None:
    life, run = second_try(ENDED_WELL)
    object.__setattr__(life.run.settings, "deferrable", deferrable)
    assert run() == [1]
    assert "create" not in life.steps
    assert life.steps.index("read the result") < life.steps.index("release the pod")
    assert life.pushed["pod_name"] == "another"


@pytest.mark.parametrize("changes", [{"state": FAILED}, {"reattaches": False}])
def test_a_failure_and_what_its_author_does_not_reattach_to_are_deleted(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    life, run = second_try(**({"state": ENDED_WELL} | changes))
    monkeypatch.setattr(PodAttempt, "watch_here", Mock(side_effect=PodFailed("It ended.", "")))
    with pytest.raises(PodFailed):
        run()
    assert life.steps.index("delete") < life.steps.index("create")


def test_one_that_turns_out_to_be_lost_is_trained_again_by_the_same_try(monkeypatch: pytest.MonkeyPatch) -> None:
    life, run = second_try(ENDED_WELL, fails={"read the result": LookupError("Its node is gone.")})
    monkeypatch.setattr(collect, "is_node_there", lambda *_: False)
    monkeypatch.setattr(PodAttempt, "watch_here", Mock(side_effect=PodPreempted("Its node went.", "")))
    with pytest.raises(PodPreempted):
        run()
    assert "create" in life.steps


@pytest.mark.parametrize(
    ("delay", "backoff", "at_most", "minutes"),
    [(5, 0, None, 11), (60, 0, None, 66), (1, 2.0, None, 14), (1, 1e300, None, 24 * 60 + 6), (9, 2.0, 9, 15)],
)
def test_a_next_try_begins_once_airflow_has_noticed_and_waited(
    delay: int, backoff: float, at_most: int | None, minutes: int
) -> None:
    task = BaseOperator(
        task_id="train",
        retry_delay=timedelta(minutes=delay),
        retry_exponential_backoff=backoff,
        max_retry_delay=None if at_most is None else timedelta(minutes=at_most),
    )
    assert next_try_within(task, 3) == timedelta(minutes=minutes)
