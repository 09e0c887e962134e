"""A DAG of a team's subclasses, each with a mixin before the operator: its nights are those of the operators."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, BaseOperator

from airflow_gpu_provider import (
    EnsureGpuPoolOperator,
    GpuPodOperator,
    GpuWorkloadOperator,
    InstallDevicePluginOperator,
    ScaleDownSensor,
)
from airflow_gpu_provider.errors import ScaleDownIsOver
from tests.dry_nights.dags import dag, pool
from tests.dry_nights.installation import Airflow, Work

WORK = ("train", "tune")
OWN = ("ensure", "device_plugin", "scale_down")
POD = {"restartPolicy": "Never", "containers": [{"name": "tune", "resources": {"limits": {"nvidia.com/gpu": 1}}}]}
JOB = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": POD}}}


class OfTeam(BaseOperator):
    """Another owner, as a team's operators have it."""

    def __init__(self, *, owner: str = "team", **arguments: Any) -> None:
        super().__init__(owner=owner, **arguments)


class TeamEnsure(OfTeam, EnsureGpuPoolOperator):
    pass


class TeamDevicePlugin(OfTeam, InstallDevicePluginOperator):
    pass


class TeamTrain(OfTeam, GpuPodOperator):
    pass


class TeamTune(OfTeam, GpuWorkloadOperator):
    pass


class TeamScaleDown(OfTeam, ScaleDownSensor):
    pass


ROLES = {
    "ensure": "GPU ensure: TeamEnsure",
    "device_plugin": "GPU device_plugin: TeamDevicePlugin",
    "train": "GPU training: TeamTrain",
    "tune": "GPU training: TeamTune",
    "scale_down": "GPU scale_down: TeamScaleDown",
}
"""By which the page in the web UI knows the tasks."""


def training() -> DAG:
    """In the shape of a `gpu_nodes` block, but for its witness."""
    with dag(default_args={"gpu_pool": pool(), "retries": 0}) as nightly:
        begin, ensure = Work(task_id="begin").as_setup(), TeamEnsure(task_id="ensure", nodes=1).as_setup()
        work = [TeamTrain(task_id="train", image="train:1"), TeamTune(task_id="tune", manifest=JOB)]
        down = TeamScaleDown(task_id="scale_down").as_teardown(setups=[begin, ensure], on_failure_fail_dagrun=True)
        begin >> ensure >> TeamDevicePlugin(task_id="device_plugin") >> work >> down
        work >> Work(task_id="done")
    return nightly


def test_a_green_night_after_which_ensure_alone_brings_no_nodes(airflow: Airflow) -> None:
    """Cleared with its teardown, as Airflow does, it finds by itself that no work is to come."""
    night = airflow.begin(training()).go_on()
    assert (night.state, night.states) == ("success", dict.fromkeys((*ROLES, "begin", "done"), "success"))
    assert night.operator_names == ROLES | {"begin": "Work", "done": "Work"}
    night.ends["ensure"] = "by itself"
    night.clear("ensure", downstream=False).go_on()
    assert (night.state, night.errors) == ("success", {"ensure": None})
    assert [night.tries(name) for name in (*WORK, *OWN)] == [1, 1, 2, 1, 2]


def test_a_red_night_whose_ensure_is_refused_without_its_scale_down(airflow: Airflow) -> None:
    night = airflow.begin(training(), ensure="failed").go_on()
    assert (night.state, night["train"], night["scale_down"]) == ("failed", "upstream_failed", "success")
    night.ends["ensure"] = "by itself"
    night.clear("ensure", only_failed=True).go_on()
    assert (night.state, night.tries("ensure"), night.tries("scale_down")) == ("failed", 2, 1)
    assert isinstance(night.errors["ensure"], ScaleDownIsOver)


def test_a_training_that_fails_makes_a_red_night_with_its_scale_down(airflow: Airflow) -> None:
    night = airflow.begin(training(), train="failed").go_on()
    assert (night.state, night["tune"], night["scale_down"]) == ("failed", "success", "success")
