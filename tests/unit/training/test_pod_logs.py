"""Which containers' logs are wanted, by KubernetesPodOperator's two arguments."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_gpu_provider.training.log.task_log import logged_containers

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
