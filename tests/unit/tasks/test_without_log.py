"""What an error says to those who are not to read a training's log: nothing that the training has printed."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_gpu_provider.errors import BadGpu, GpuError, PodFailed, PodPreempted
from airflow_gpu_provider.tasks.without_log import without_log
from airflow_gpu_provider.training.life.collect import invalid
from airflow_gpu_provider.training.life.diagnosis import diagnosed, for_bad_gpu, with_last_lines
from airflow_gpu_provider.training.wait.attempt_wait import Silence
from airflow_gpu_provider.training.wait.end import CORRECT_PROGRAM, end_of
from airflow_gpu_provider.training.wait.object_wait import of_rank
from airflow_gpu_provider.training.wait.signs import BROKEN
from tests.unit.training.test_gang_wait import WAIT
from tests.unit.training.test_pod_end import ended, pod
from tests.unit.training.test_pod_placement import a_pool

FAILED = PodFailed("Pod p: container base ended with exit code 1.", "Correct it.", exit_code=1)
LINE = "KeyError: 'patient_12'"
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered in patient_12"


def by_its_log(*lines: str, error: PodFailed = FAILED) -> PodFailed:
    return diagnosed(error, lines, pool=a_pool(), node="n1", bad_gpu="")


def by_its_message(*containers: str, **more: object) -> GpuError:
    end = end_of(pod(*(ended(1, name=name, message=f"{LINE}\nat line 2") for name in containers), **more))  # type: ignore[arg-type]
    assert end is not None
    assert end.error is not None
    return end.error


QUOTING: dict[str, tuple[GpuError, str]] = {
    "its last lines": (by_its_log("step 7", LINE), "Pod p: container base ended with exit code 1. Correct it."),
    "nothing to do": (with_last_lines(PodFailed("It failed."), [LINE]), "It failed."),
    "the line that says why": (
        by_its_log(ECC),
        f"Pod p: container base ended with exit code 1: a GPU of node n1 is broken. {BROKEN.fix}",
    ),
    "its termination message": (
        by_its_message("base"),
        f"Pod train-x: container base ended with exit code 1. {CORRECT_PROGRAM}",
    ),
    "both": (
        by_its_log(ECC, error=by_its_message("base")),  # type: ignore[arg-type]
        f"Pod train-x: container base ended with exit code 1: a GPU of node n1 is broken. {BROKEN.fix}",
    ),
    "another container's": (
        by_its_message("data", phase="Failed"),
        "Pod train-x: container data ended with exit code 1. Correct container data by what its log says, and clear the"
        " task.",
    ),
    "its result": (
        of_rank(invalid("patient_12 = 1", ValueError("Expecting value"), pod="p"), 3),
        "Rank 3: Pod p succeeded, but its result, /airflow/xcom/return.json, is not valid JSON. Have the training write"
        " JSON there, and rename the file into place when it is whole.",
    ),
    "the ranks' last lines": (
        WAIT.hung("They hang.", "Raise it.", Silence(lasts=timedelta(), last_lines={0: LINE})),
        "They hang. Raise it. Look at the rank whose last line differs.",
    ),
    "what another training printed": (
        for_bad_gpu(PodPreempted("It was lost.", "Retry the task."), "n1", f"{LINE} in etl r1 at 02:00Z"),
        "It was lost; all pods avoid node n1 for its GPU. Retry the task.",
    ),
}


@pytest.mark.parametrize(("error", "brief"), QUOTING.values(), ids=QUOTING)
def test_what_a_training_has_printed_is_left_out(error: GpuError, brief: str) -> None:
    assert "patient_12" in str(error)
    assert " ".join(filter(None, without_log(error).values())) == brief


def test_an_error_that_quotes_nothing_is_as_it_is() -> None:
    error = BadGpu("A GPU of n1 is broken.", "Retry the task. It goes elsewhere.")
    assert without_log(error) == {"what": error.what, "fix": error.fix}
