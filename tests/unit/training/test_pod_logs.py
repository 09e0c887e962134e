"""Which containers' logs are wanted, by KubernetesPodOperator's two arguments, and how much of a flood is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.client import CoreV1Api

from airflow_gpu_provider.cluster.model.pod_state import PodState
from airflow_gpu_provider.training.log.followed_log import _bunches
from airflow_gpu_provider.training.log.task_log import last_lines, logged_containers

SPEC = {
    "initContainers": [{"name": "data"}, {"name": "check"}],
    "containers": [{"name": "base"}, {"name": "exporter"}, {"name": "airflow-xcom-sidecar"}],
}


@pytest.mark.parametrize(
    ("containers", "init_containers", "names"),
    [
        ("base", None, ["base"]),
        ("base", "check", ["check", "base"]),
        (["exporter", "base"], ["data"], ["data", "exporter", "base"]),
        (True, True, ["data", "check", "base", "exporter"]),
        ("absent", None, []),
    ],
)
def test_containers_by_name_or_all(containers: Any, init_containers: Any, names: list[str]) -> None:
    assert logged_containers(SPEC, containers, init_containers) == names


def test_name_that_the_pod_does_not_have_is_said(caplog: pytest.LogCaptureFixture) -> None:
    logged_containers(SPEC, ["absent", "base"], None)
    assert "absent" in caplog.text


def test_pod_without_init_containers() -> None:
    assert logged_containers({"containers": [{"name": "base"}]}, "base", True) == ["base"]


@given(st.lists(st.integers(0, 300_000), max_size=20))
def test_what_is_written_without_a_pause_is_short(lengths: list[int]) -> None:
    """A pod that prints long lines without end keeps the triggerer no longer from the others than one of short ones."""
    lines = [b"x" * length for length in lengths]
    bunches = list(_bunches(lines))
    assert [line for bunch in bunches for line in bunch] == lines
    assert all(len(bunch) == 1 or sum(map(len, bunch)) <= 50_000 for bunch in bunches)
    assert all(len(bunch) <= 50 for bunch in bunches)


def last_of(*pieces: bytes) -> list[str]:
    def read(*_: Any, timestamps: bool = False, **__: Any) -> Any:
        assert timestamps
        return SimpleNamespace(stream=lambda _size: iter(pieces))

    client = cast(CoreV1Api, SimpleNamespace(read_namespaced_pod_log=read))
    return last_lines(client, cast(PodState, SimpleNamespace(name="p", namespace="n")), "base")


def test_the_last_lines_of_a_flood_are_kept_and_no_others() -> None:
    flood = [b"x" * 2**16] * 40 + [b"\n"] + [b"y\n" * 2**15] * 4
    lines = last_of(*flood, b"2026-01-01T02:00:00.5Z the \x1b[31mend\x1b[0m\x00")
    assert lines == [*["y"] * 199, "the end"]


@pytest.mark.parametrize(
    "words",
    [
        "unable to retrieve container logs for containerd://468b6c1362d9",
        'failed to try resolving symlinks in path "/var/log/pods/ml_x_u1/base/0.log": lstat /var/log: no such file',
        'failed to open log file "/var/log/pods/ml_x_u1/base/0.log": open /var/log/pods: no such file or directory',
        "failed to create fsnotify watcher: too many open files",
        'failed to watch file "/var/log/pods/ml_x_u1/base/0.log": no space left on device',
        "rpc error: code = NotFound desc = an error occurred when try to find container",
    ],
)
def test_the_kubelet_s_own_words_are_no_line_of_the_program_s(words: str) -> None:
    assert last_of(words.encode()) == []
    stamped = [b"2026-01-01T02:00:00.123456789Z KeyError: 'label'\n", f"2026-01-01T02:00:01Z {words}\n".encode()]
    assert last_of(*stamped, words.encode()) == ["KeyError: 'label'", words]
