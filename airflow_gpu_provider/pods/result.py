"""A pod's result: the JSON that its container leaves for its XCom sidecar."""

from __future__ import annotations

import json
from typing import Any

from airflow.providers.cncf.kubernetes.utils.pod_manager import EMPTY_XCOM_RESULT
from airflow.providers.cncf.kubernetes.utils.xcom_sidecar import PodDefaults

from airflow_gpu_provider.cluster.pod_state import PodState
from airflow_gpu_provider.errors import ClusterUnreachable, GpuError, PodPreempted, PodResultInvalid
from airflow_gpu_provider.pods.end import why_disrupted

RESULT_FILE = f"{PodDefaults.XCOM_MOUNT_PATH}/return.json"
_SHOWN = 100


def parsed(text: str, *, pod: str) -> Any:
    """Return the result that a result file holds; None where it is empty.

    Raises:
        PodResultInvalid: It is no JSON.
    """
    if text.strip() in ("", EMPTY_XCOM_RESULT):
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        raise invalid(text, error, pod=pod) from None


def invalid(text: str, error: ValueError, *, pod: str) -> PodResultInvalid:
    """Return the error of a result file with this text, which is no JSON."""
    begins = repr(text[:_SHOWN])
    return PodResultInvalid(
        f"Pod {pod} ended well, but its result {RESULT_FILE} is no JSON ({error}); its"
        f" {len(text)} characters begin with {begins}.",
        "Have the training write JSON there, and rename the file into place when it is whole.",
        pod=pod,
    )


class ResultUnread(ClusterUnreachable):
    """The result of a pod that ended well is there, and could not be read."""


def unread(state: PodState | None, error: Exception, *, pod: str, node_is_there: bool) -> GpuError:
    """Return what it means that the result of a pod that ended well could not be read.

    Args:
        state: The pod as it is now; None where it is gone.
        error: What the attempt to read it has ended with.
        pod: Its name.
        node_is_there: Its node is in the cluster, and answers.
    """
    why = _why_lost(state, node_is_there)
    if why:
        return PodPreempted(
            f"Pod {pod} had finished, but {why} before its result was read.",
            "Retry the task: the next try waits for new capacity.",
            pod=pod,
            node=(state.node if state else "") or "",
        )
    said = str(error).strip().partition("\n")[0][:_SHOWN] or "no words"
    return ResultUnread(
        f"The result of pod {pod} could not be read ({type(error).__name__}: {said}).",
        "Check that the connection's identity may create pods/exec, and that the pod's node answers.",
        pod=pod,
    )


def _why_lost(state: PodState | None, node_is_there: bool) -> str:
    if state is None:
        return "was deleted"
    if why := why_disrupted(state):
        return f"was taken away ({why})"
    if state.deletion_asked_at is not None:
        return "was deleted"
    if not node_is_there:
        return f"its node {state.node} was lost"
    sidecar = next((one for one in state.others if one.name == PodDefaults.SIDECAR_CONTAINER_NAME), None)
    return "the container that keeps its result ended" if sidecar and sidecar.status == "terminated" else ""
