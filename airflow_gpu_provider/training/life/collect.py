"""Reads an ended pod before it is released: how it ended, considering everything known, and its result."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from airflow.providers.cncf.kubernetes.utils.pod_manager import EMPTY_XCOM_RESULT
from kubernetes.client import ApiException, V1Pod

from airflow_gpu_provider.cluster.api.access_review import verbs_missing_for_exec
from airflow_gpu_provider.cluster.api.api_errors import from_status
from airflow_gpu_provider.cluster.api.nodes import instance_type_of, is_node_there, machine_of
from airflow_gpu_provider.cluster.model.pod_state import ContainerState, Json, PodState
from airflow_gpu_provider.cluster.model.refusals import SIDECAR_SETTINGS, XCOM_SIDECAR
from airflow_gpu_provider.errors import (
    LOST,
    AdmissionDenied,
    ClusterUnreachable,
    GpuError,
    GpuHung,
    PermissionDenied,
    PodFailed,
    PodPreempted,
    PodResultInvalid,
    PodResultLost,
)
from airflow_gpu_provider.training.life.diagnosis import PodMachine, diagnosed, for_bad_gpu, with_last_lines
from airflow_gpu_provider.training.life.hook import PoolHook
from airflow_gpu_provider.training.life.run import Run
from airflow_gpu_provider.training.life.store import RESULT_FILE, as_v1
from airflow_gpu_provider.training.log.task_log import last_lines
from airflow_gpu_provider.training.wait.attempt_wait import WaitOutcome
from airflow_gpu_provider.training.wait.end import KILLED, RETRY, end_of, why_disrupted
from airflow_gpu_provider.untrusted import NotStorable, loads, storable, stored_as_it_is

_SHOWN, _SAID = 100, 300
_UNFIT = {False: "is not valid JSON", True: "cannot be stored by Airflow"}
_WRITE_JSON = "Have the training write JSON there, and rename the file into place when it is whole."
_KEEP_SMALL = "Have the training write plain JSON there (null for NaN), and what is large to an object store."

_log = logging.getLogger(__name__)


def check_exec(run: Run, namespace: str) -> None:
    """Raise PermissionDenied if the result of the task's pod could not be read; not if the API server does not say."""
    if not run.settings.has_result:
        return
    try:
        missing = verbs_missing_for_exec(run.cluster.api, namespace)
    except GpuError as error:
        _log.debug("Whether exec is allowed is not known: %s", error)
        return
    if missing:
        verbs = ", ".join(f'"{verb}"' for verb in missing)
        raise PermissionDenied(
            f"The cluster denies permission to {' and '.join(missing)} pods/exec in namespace {namespace}: the pod's"
            " result could not be read. No pod is created.",
            f'Grant it: resources ["pods/exec"], verbs [{verbs}], as in docs/rbac/; or leave out do_xcom_push.',
            resource="pods/exec",
            namespace=namespace,
        )


def parsed(text: str, *, pod: str, succeeded: bool = True) -> Any:
    """Return the result in a result file, its texts plain; None if it is empty.

    Raises:
        PodResultInvalid: It is no JSON, or none that Airflow can store.
    """
    if text.strip() in ("", EMPTY_XCOM_RESULT):
        return None
    try:
        return storable(loads(text))
    except ValueError as error:
        raise invalid(text, error, pod=pod, succeeded=succeeded) from None


def invalid(text: str, error: ValueError, *, pod: str, succeeded: bool = True) -> PodResultInvalid:
    """Return the error for a result file with this text, which is not JSON, or JSON that Airflow cannot store."""
    begins = f"; its {len(text)} characters start with {text[:_SHOWN]!r}" if text else ""
    is_json = isinstance(error, NotStorable)
    return PodResultInvalid(
        f"{_result_of(pod, succeeded=succeeded)}, {RESULT_FILE}, {_UNFIT[is_json]} ({error}){begins}.",
        _KEEP_SMALL if is_json else _WRITE_JSON,
        pod=pod,
        without_log=f"{_result_of(pod, succeeded=succeeded)}, {RESULT_FILE}, {_UNFIT[is_json]}.",
    )


class ResultUnread(ClusterUnreachable):
    """The result of a successful pod exists, but could not be read."""


def unread(
    state: PodState | None, error: Exception, *, pod: str, node_is_there: bool, succeeded: bool = True
) -> GpuError:
    """Return what it means that a pod's result could not be read; `state` is as it is now, None if it is gone."""
    if (ended := _sidecar(state, "terminated")) and _died_by_itself(ended):
        return _lost_with_sidecar(_result_of(pod, succeeded=succeeded), ended, pod=pod)
    why = _why_lost(state, node_is_there)
    if why:
        return PodPreempted(
            f"Pod {pod} had finished, but {why} before its result was read.",
            RETRY,
            pod=pod,
            node=(state.node if state else "") or "",
        )
    result = _result_of(pod, succeeded=succeeded)
    if waiting := _sidecar(state, "waiting"):
        why = f"{waiting.reason}: {waiting.message}".strip(": ") or "no reason given"
        return PodResultLost(
            f"{result} cannot be read: the container {waiting.name}, which keeps it, has never started ({why}).",
            f"Set xcom_sidecar_container_image {SIDECAR_SETTINGS}, to an image that the nodes can pull.",
            pod=pod,
        )
    answer = _answer(error)
    if isinstance(answer, PermissionDenied | AdmissionDenied):
        return PodResultLost(f"{result} cannot be read: {_uncapitalized(answer.what)}", answer.fix, pod=pod)
    return ResultUnread(
        f"{result} could not be read ({_in_words(error)}).",
        "Check that the pod's node answers, and the way from the API server to it (konnectivity, port 10250); another"
        " try runs the training again.",
        pod=pod,
    )


def _result_of(pod: str, *, succeeded: bool) -> str:
    return f"Pod {pod} succeeded, but its result" if succeeded else f"The result of pod {pod}"


def _answer(error: Exception) -> GpuError | None:
    """Return what the API server has answered to an exec; None where something else has failed."""
    return from_status(error, "create", "pods/exec") if isinstance(error, ApiException) else None


def _in_words(error: Exception) -> str:
    answer = _answer(error)
    message = str(answer.what if answer else error).strip().partition("\n")[0][:_SAID].rstrip(".") or "no words"
    return message if answer else f"{type(error).__name__}: {message}"


def _uncapitalized(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _why_lost(state: PodState | None, node_is_there: bool) -> str:
    if state is None:
        return "was deleted"
    if why := why_disrupted(state):
        return f"was preempted ({why})"
    if state.deletion_asked_at is not None:
        return "was deleted"
    if not node_is_there:
        return f"its node {state.node} was lost"
    return "the container that keeps its result ended" if _sidecar(state, "terminated") else ""


def _died_by_itself(sidecar: ContainerState) -> bool:
    """Return True if the container that keeps the result would end in the same way again.

    It exits with 0 when a worker has read the result, and is killed with its machine.
    """
    return sidecar.reason == "OOMKilled" or sidecar.exit_code not in (None, 0, *KILLED)


def _lost_with_sidecar(result: str, sidecar: ContainerState, *, pod: str) -> PodResultLost:
    if sidecar.reason == "OOMKilled":
        why, what = "went over its memory limit", "xcom_sidecar_container_resources"
        fix = f"Raise the memory limit in {what} {SIDECAR_SETTINGS}, or have the training return less."
    else:
        why = f"ended with exit code {sidecar.exit_code}{_because(sidecar)}"
        fix = f"Set xcom_sidecar_container_image {SIDECAR_SETTINGS}, to an image that has a shell and `sleep`."
    return PodResultLost(
        f"{result} is lost: the container {sidecar.name}, which kept it, {why}. The training is not run again: it would"
        " end the same way.",
        f"{fix} Then clear the task, if its result is needed.",
        pod=pod,
        container=sidecar.name,
    )


def _because(container: ContainerState) -> str:
    text = f"{container.reason}: {container.message}".strip(": ").rstrip(".")
    return f" ({text})" if text and text != "Error" else ""


def _sidecar(state: PodState | None, status: str) -> ContainerState | None:
    """Return the container that keeps the result, if it is in that state."""
    others = state.others if state is not None else ()
    return next((one for one in others if one.name == XCOM_SIDECAR and one.status == status), None)


def explained(
    error: GpuError | None, watched: WaitOutcome, pod: PodState | None, base: str, cluster: PoolHook
) -> GpuError | None:
    """Return how a pod ended, from its own state (`error`), its machine, its last log lines and its node.

    `base` is its main container.
    """
    if error is None and watched.result:
        return None  # it was written before the container ended, and its machine has answered since
    node = (pod.node if pod is not None else "") or ""
    machine = PodMachine(
        watched.machine, cluster.pool, lambda: cluster.platform, lambda node: machine_of(cluster.api, node)
    )
    error = machine.judged(error, pod=watched.name, node=node)
    if isinstance(error, PodPreempted):
        node = node or error.details.get("node") or ""
        return for_bad_gpu(error, node, cluster.gpu_health.of_node(node))
    if pod is None or not isinstance(error, PodFailed) or type(error) not in (PodFailed, GpuHung):
        return error
    lines = last_lines(cluster.core_v1_client, pod, error.details.get("container") or base)
    if isinstance(error, GpuHung):
        return with_last_lines(error, lines)
    bad_gpu = cluster.gpu_health.of_node(node)
    type_of = partial(instance_type_of, cluster.api)
    return diagnosed(error, lines, pool=cluster.pool, node=node, bad_gpu=bad_gpu, type_of=type_of)


def result_of_gone(watched: WaitOutcome) -> Any:
    """Return the result of a pod that succeeded and is gone, if it was read in time."""
    if watched.result is None:
        raise unread(None, LookupError(watched.name), pod=watched.name, node_is_there=True)
    return parsed(watched.result, pod=watched.name)


def read_result(
    pod: Json,
    state: PodState,
    error: GpuError | None,
    watched: WaitOutcome,
    *,
    base: str,
    cluster: PoolHook,
    extract: Callable[[V1Pod], object],
) -> tuple[object, GpuError | None]:
    """Return the pod's result, and how it ended; the result is required only if the pod succeeded.

    If the wait has not read it, `extract` does, and ends the container that keeps it.

    Raises:
        GpuError: The result exists but could not be read; it may be readable later.
    """
    if isinstance(error, LOST) or end_of(state) is None:
        return None, error
    try:
        if watched.result is not None:
            _end_sidecar(pod, cluster)
            return parsed(watched.result, pod=watched.name, succeeded=error is None), error
        return _extracted(pod, cluster, extract, succeeded=error is None), error
    except GpuError as missing:
        if error is not None:
            _log.info("The failed pod's result is left out: %s", missing.what)
            return None, error
        if isinstance(missing, PodFailed):
            return None, explained(missing, watched, state, base, cluster)
        if isinstance(missing, PodResultLost) and "container" in missing.details:
            return None, missing  # of one that has died there is nothing to be read later
        raise


def _extracted(pod: Json, cluster: PoolHook, extract: Callable[[V1Pod], object], *, succeeded: bool) -> object:
    name = pod["metadata"]["name"]
    try:
        return stored_as_it_is(lambda: extract(as_v1(pod)))
    except (json.JSONDecodeError, NotStorable) as error:
        raise invalid(getattr(error, "doc", ""), error, pod=name, succeeded=succeeded) from None
    except Exception as error:
        # On exec, each library below raises its own errors: the pod's state tells what they mean.
        is_there = is_node_there(cluster.api, pod["spec"].get("nodeName"))
        raise unread(cluster.pods.state(pod), error, pod=name, node_is_there=is_there, succeeded=succeeded) from error


def _end_sidecar(pod: Json, cluster: PoolHook) -> None:
    """End the container that keeps the result: it ignores SIGTERM, and would keep the node for the grace period."""
    try:
        cluster.manager.extract_xcom_kill(as_v1(pod))
    except Exception as error:  # noqa: BLE001 - exec's libraries raise what they like
        _log.warning("The XCom sidecar of pod %s is still running: %s.", pod["metadata"]["name"], _in_words(error))
