"""Which containers' logs are wanted, by KubernetesPodOperator's two arguments, and how much of a flood is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.client import CoreV1Api

from airflow_gpu_provider.cluster.pod_state import PodState
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


def test_the_last_lines_of_a_flood_are_kept_and_no_others() -> None:
    pieces = [b"x" * 2**16] * 40 + [b"\n"] + [b"y\n" * 2**15] * 4 + [b"the \x1b[31mend\x1b[0m\x00"]
    client = SimpleNamespace(
        read_namespaced_pod_log=lambda *_, **__: SimpleNamespace(stream=lambda _size: iter(pieces))
    )
    lines = last_lines(cast(CoreV1Api, client), cast(PodState, SimpleNamespace(name="p", namespace="n")), "base")
    assert lines == [*["y"] * 199, "the end"]
