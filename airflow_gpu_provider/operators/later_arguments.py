"""Arguments that KubernetesPodOperator has got since the oldest release this package takes; here with any of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow.providers.cncf.kubernetes.utils.xcom_sidecar import PodDefaults

from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.tasks.pool_operator import PoolOperator

if TYPE_CHECKING:
    from kubernetes.client import V1Pod

KEEP_POD = "keep_pod"
_ON_KILL = ("delete_pod", KEEP_POD)


class LaterArguments(PoolOperator):
    """Takes them from the task or from default_args; a newer KubernetesPodOperator's own attributes agree with these.

    Args:
        runtime_class_name: The pod's RuntimeClass (KubernetesPodOperator's from cncf-kubernetes 10.15 on).
        on_kill_action: "delete_pod" or "keep_pod", when the task is killed (10.15).
        durable: `reattach_on_restart`, and before it (10.20).
        xcom_sidecar_container_security_context: The XCom sidecar's; default: the connection's (10.20).
        log_events_on_startup: Accepted, without a meaning: the wait tells what events say (10.25).

    Raises:
        PoolSpecError: Another on_kill_action.
    """

    hook: Any
    on_kill_action: Any
    reattach_on_restart: Any

    def __init__(
        self,
        *,
        runtime_class_name: str | None = None,
        on_kill_action: str = _ON_KILL[0],
        durable: bool | None = None,
        xcom_sidecar_container_security_context: Any = None,
        log_events_on_startup: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if on_kill_action not in _ON_KILL:
            raise PoolSpecError(
                f"Task {self.task_id}: on_kill_action={on_kill_action!r}.", f"Use {' or '.join(map(repr, _ON_KILL))}."
            )
        self.runtime_class_name = runtime_class_name
        kept_as: Callable[[str], Any] = type(getattr(self, "on_kill_action", ""))  # an enumeration from 10.15 on
        self.on_kill_action = kept_as(on_kill_action)
        if durable is not None:
            self.reattach_on_restart = durable
        self.durable = self.reattach_on_restart
        self.xcom_sidecar_container_security_context = xcom_sidecar_container_security_context
        self.log_events_on_startup = log_events_on_startup

    def _complete(self, pod: V1Pod) -> V1Pod:
        """Put into the pod what an older KubernetesPodOperator leaves out; a newer one has done the same."""
        spec = pod.spec
        spec.runtime_class_name = self.runtime_class_name or spec.runtime_class_name
        given = self.xcom_sidecar_container_security_context
        for container in spec.containers:
            if container.name == PodDefaults.SIDECAR_CONTAINER_NAME:
                wanted = self.hook.get_xcom_sidecar_container_security_context() if given is None else given
                container.security_context = wanted or container.security_context
        return pod
