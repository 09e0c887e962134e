"""A night, and a janitor's looks, of a team's subclasses: each has another class before the operator."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from airflow.sdk import DAG

from airflow_gpu_provider import (
    EksGpuPool,
    EnsureGpuPoolOperator,
    GpuPodOperator,
    GpuPoolDoctorOperator,
    GpuPoolStatusOperator,
    GpuWorkloadOperator,
    InstallDevicePluginOperator,
    ReapGpuPoolsOperator,
    ScaleDownSensor,
)
from tests.browser.leaving import Leaving

POOL = EksGpuPool(name="team-gpu", cluster_name="k8s-ml", region="us-west-2", instance_types=["g6.xlarge"], max_nodes=1)
CONTAINER = {"name": "tune", "resources": {"limits": {"nvidia.com/gpu": 1}}}
POD: dict[str, Any] = {"restartPolicy": "Never", "containers": [CONTAINER]}
JOB = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": POD}}}


class TeamEnsure(Leaving, EnsureGpuPoolOperator):
    pass


class TeamDevicePlugin(Leaving, InstallDevicePluginOperator):
    pass


class TeamTrain(Leaving, GpuPodOperator):
    pass


class TeamTune(Leaving, GpuWorkloadOperator):
    pass


class TeamScaleDown(Leaving, ScaleDownSensor):
    custom_operator_name = "Back to zero"


class TeamStatus(Leaving, GpuPoolStatusOperator):
    pass


class TeamDoctor(Leaving, GpuPoolDoctorOperator):
    pass


class TeamReap(Leaving, ReapGpuPoolsOperator):
    pass


COMMON: dict[str, Any] = {"schedule": None, "start_date": datetime(2026, 1, 1)}

with DAG("of_a_team", **COMMON, default_args={"gpu_pool": POOL}):
    ensure = TeamEnsure(task_id="team-gpu.ensure")
    sweep = TeamTrain.partial(task_id="team-gpu-train").expand(image=["train:1"])
    down = TeamScaleDown(task_id="team-gpu.scale_down", retries=0).as_teardown(setups=ensure)
    ensure >> TeamDevicePlugin(task_id="plugin") >> [sweep, TeamTune(task_id="tune", manifest=JOB)] >> down

with DAG("looks_of_a_team", **COMMON, default_args={"gpu_pools": [POOL]}):
    TeamReap(task_id="reap")
    TeamDoctor(task_id="doctor")
    TeamStatus(task_id="status")
