"""Whether a pod's end was its machine's, by what the cloud says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.clouds.base import MachineEnd, Platform
from airflow_gpu_provider.errors import CloudError, EndUnknown, GpuError, PodFailed, PodOutOfMemory, PodPreempted
from airflow_gpu_provider.training.life.collect import explained
from airflow_gpu_provider.training.life.diagnosis import PodMachine
from airflow_gpu_provider.training.wait.attempt_wait import WaitOutcome
from tests.unit.training.test_pod_placement import a_pool

TAKEN = MachineEnd(why="EC2: shutting-down, Server.SpotInstanceTermination", taken_back=True)
ENDED = MachineEnd(why="EC2: terminated, Client.UserInitiatedShutdown")
KILLED = PodFailed("Pod p: container base ended with exit code 143.", "Its log.", exit_code=143)
LOST = PodPreempted("Pod p was lost: its node left the cluster.", "Retry the task.", node="n1")


class Cloud:
    """Answers what a test says, `late` times that the machine runs; counts how often it is asked."""

    def __init__(self, end: MachineEnd | None, error: GpuError | None = None, *, late: int = 0) -> None:
        self.asked: list[str] = []
        self.paused: list[float] = []
        self._end = end
        self._error = error
        self._late = late

    def machine_end(self, machine: str) -> MachineEnd | None:
        self.asked.append(machine)
        if self._error:
            raise self._error
        return None if len(self.asked) <= self._late else self._end


def judged(cloud: Cloud, error: GpuError | None, *, machine: str = "i-0a", **pool: Any) -> GpuError | None:
    spec = a_pool(**{"capacity_types": ["SPOT"], **pool})
    return a_machine(cloud, machine, spec).judged(error, pod="p", node="n1")


def a_machine(cloud: Cloud, machine: str = "i-0a", pool: EksGpuPool | None = None, **nodes: str) -> PodMachine:
    return PodMachine(
        machine,
        pool or a_pool(),
        lambda: cast("Platform", cloud),
        lambda node: nodes.get(node, ""),
        cloud.paused.append,
    )


@pytest.mark.parametrize("end", [TAKEN, ENDED])
def test_container_that_was_killed_with_its_machine_is_preempted(end: MachineEnd) -> None:
    error = judged(Cloud(end), KILLED)
    assert type(error) is PodPreempted
    assert error.what == (
        f"Pod p was preempted: its container ended with exit code 143 when its machine i-0a was terminated ({end.why})."
    )
    assert judged(Cloud(None), KILLED) is KILLED


def test_an_end_that_nobody_saw_is_the_machine_s_if_the_cloud_saw_that() -> None:
    unseen = EndUnknown("Pod p: node n1 has lost container base, and its end was not seen.", "Retry the task.")
    error = judged(Cloud(TAKEN), unseen)
    assert type(error) is PodPreempted
    assert (
        error.what
        == f"Pod p was preempted: its container ended unseen when its machine i-0a was terminated ({TAKEN.why})."
    )
    assert judged(Cloud(None), unseen) is unseen


def test_a_cloud_that_shows_the_end_late_is_asked_again() -> None:
    cloud = Cloud(TAKEN, late=3)
    assert type(judged(cloud, KILLED)) is PodPreempted
    assert (len(cloud.asked), cloud.paused) == (4, [1.0, 2.0, 4.0])
    assert judged(Cloud(TAKEN, late=4), KILLED) is KILLED


def test_success_on_a_machine_that_was_taken_back_is_none() -> None:
    error = judged(Cloud(TAKEN), None)
    assert type(error) is PodPreempted
    assert "exit code 0" in str(error)
    assert judged(Cloud(ENDED), None) is None, "somebody removed the machine after it"
    assert judged(Cloud(None), None) is None


def test_success_costs_no_question_where_there_is_no_spot() -> None:
    cloud = Cloud(TAKEN)
    assert judged(cloud, None, capacity_types=["ON_DEMAND"]) is None
    assert cloud.asked == []
    others = {"manage": "scale", "asg_names": ["g"], "instance_types": [], "capacity_types": ["ON_DEMAND"]}
    assert type(judged(cloud, None, **others)) is PodPreempted, "the spec does not say what others' groups are"


@pytest.mark.parametrize("error", [PodFailed("f", exit_code=1), PodOutOfMemory("o", exit_code=137)])
def test_program_that_failed_by_itself_has_failed(error: PodFailed) -> None:
    cloud = Cloud(TAKEN)
    assert judged(cloud, error) is error
    assert cloud.asked == []


def test_preemption_is_told_with_the_clouds_reason_once() -> None:
    machine = a_machine(Cloud(TAKEN))
    error = machine.explained(LOST)
    assert error.what == f"Pod p was lost: its node left the cluster (machine i-0a: {TAKEN.why})."
    assert (error.fix, error.details) == (LOST.fix, {"node": "n1", "machine": "i-0a"})
    assert machine.explained(error) is error
    assert judged(Cloud(None), LOST) is LOST


def test_a_preemption_names_the_check_for_which_its_node_was_drained() -> None:
    said = "GpuMemWatch=True (GpuMemWatchIsNotHealthy: ErrorCode:95)"
    told = {"n1": said}
    cluster: Any = SimpleNamespace(
        pool=a_pool(),
        platform=Cloud(None),
        gpu_health=SimpleNamespace(of_node=lambda node: told.get(node, "")),
    )
    watched = WaitOutcome(saw_end=True, name="p", namespace="ns", uid="u", machine="i-0a")
    error = explained(LOST, watched, None, "base", cluster)
    assert type(error) is PodPreempted
    assert error.what == f"Pod p was lost: its node left the cluster; all pods avoid node n1 for its GPU ({said})."
    assert error.details["node"] == "n1"
    told.clear()
    assert explained(LOST, watched, None, "base", cluster) is LOST


def test_machine_that_nobody_knows_or_may_read_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    cloud = Cloud(TAKEN)
    assert judged(cloud, KILLED, machine="") is KILLED
    assert cloud.asked == []
    assert judged(Cloud(None, CloudError("AWS refused it.")), KILLED) is KILLED
    assert "AWS refused it." in caplog.text


def test_node_is_asked_for_a_machine_that_the_wait_was_too_short_to_see() -> None:
    cloud = Cloud(TAKEN)
    machine = a_machine(cloud, "", n1="i-0b")
    assert "when its machine i-0b was terminated" in str(machine.judged(KILLED, pod="p", node="n1"))
    assert a_machine(cloud, "", n1="i-0b").judged(KILLED, pod="p", node="gone") is KILLED
    assert cloud.asked == ["i-0b"]


def test_cloud_is_asked_once() -> None:
    cloud = Cloud(TAKEN)
    machine = a_machine(cloud)
    machine.judged(KILLED, pod="p", node="n1")
    machine.explained(LOST)
    assert cloud.asked == ["i-0a"]


def test_a_node_that_this_package_released_needs_no_reason_of_the_cloud() -> None:
    cloud = Cloud(ENDED)
    released = PodPreempted("Pod p ended with its node n1.", "Raise max_runtime.", node="n1", released_by="etl/train")
    assert a_machine(cloud, n1="i-0a").explained(released) is released
    assert cloud.asked == []
