"""The operator, as its try calls it; and as the attempts call it that create pods, or an object by a manifest."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import NoReturn, Protocol

from kubernetes.client import V1Pod

from airflow_gpu_provider.cluster.model.pod_state import Json
from airflow_gpu_provider.training.life.ownership import Ownership
from airflow_gpu_provider.training.life.run import AttemptRecord, Run
from airflow_gpu_provider.training.life.task_attempt import AttemptHost, TaskAttempt


class Host(AttemptHost, Protocol):
    """The operator, as its try calls it."""

    def ownership(self) -> Ownership:
        """Return the owner of what the try creates; asks Airflow."""

    def new_attempt(self, run: Run, owner: Callable[[], Ownership], record: AttemptRecord) -> TaskAttempt:
        """Return an attempt, with the operator as its host; `owner` returns its owner."""

    def run_again(self) -> object:
        """Run the try once more through `execute`, whose preparation each worker that builds a pod needs."""

    def wait_in_triggerer(self, record: dict[str, object], timeout: timedelta) -> NoReturn:
        """Raise TaskDeferred, with the trigger of this record."""


class PodHost(AttemptHost, Protocol):
    """An operator that creates pods itself, or the template of a gang's."""

    def unplaced_pod(self) -> V1Pod:
        """Return the pod to create, not placed yet."""

    def call_back(self, name: str, **what: V1Pod) -> None:
        """Call this method of the task's KubernetesPodOperatorCallbacks."""

    def extract_xcom(self, pod: V1Pod) -> object:
        """Read a pod's result, and end the container that keeps it."""

    def release_pod(self, pod: V1Pod, result: object) -> None:
        """Delete or keep a pod as on_finish_action says; also takes its result, and pushes nothing."""


class WorkloadHost(AttemptHost, Protocol):
    """An operator that creates an object whose controller creates pods."""

    @property
    def named_manifest(self) -> Json:
        """The object, rendered, with name and namespace."""
