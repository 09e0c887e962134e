"""Arguments of EksPodOperator and GKEStartPodOperator, for a DAG that moves by changing the class and adding gpu_pool=.

They say which cluster the pod runs in and as whom, which gpu_pool says too: what agrees is taken and forgotten, what
contradicts it is refused. KubernetesPodOperator's own connection arguments are treated alike. What comes from
default_args is not looked at: it is there for other operators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.pool_operator import PoolOperator
from airflow_gpu_provider.pools.base import GpuPool
from airflow_gpu_provider.pools.values import is_template

if TYPE_CHECKING:
    from airflow.sdk.definitions.mappedoperator import OperatorPartial

_EKS = ("cluster_name", "region", "aws_conn_id")
_GKE = (
    "cluster_name",
    "location",
    "project_id",
    "gcp_conn_id",
    "impersonation_chain",
    "use_internal_ip",
    "use_dns_endpoint",
)
_OF_KIND = {"eks": _EKS, "gke": _GKE}
_CONNECTION = ("kubernetes_conn_id", "cluster_context")
_ANY = {
    "project_id": "PROVIDE_PROJECT_ID",  # the Google provider's word for that of the connection
    "kubernetes_conn_id": "kubernetes_default",  # KubernetesPodOperator's default, so nobody need have meant it
}


class MovedArguments(PoolOperator):
    """Takes the other operators' own arguments, next to KubernetesPodOperator's. All default to what the pool says.

    Args:
        cluster_name, region, aws_conn_id, pod_name: As EksPodOperator has them; `pod_name` is `name`.
        cluster_name, location, project_id, gcp_conn_id, impersonation_chain, use_internal_ip, use_dns_endpoint: As
            GKEStartPodOperator has them.

    Raises:
        PoolSpecError: `pod_name` and `name` are both given, and differ.
    """

    def __init__(
        self,
        *,
        cluster_name: str | None = None,
        region: str | None = None,
        aws_conn_id: str | None = None,
        pod_name: str | None = None,
        location: str | None = None,
        project_id: str | None = None,
        gcp_conn_id: str | None = None,
        impersonation_chain: str | Sequence[str] | None = None,
        use_internal_ip: bool | None = None,
        use_dns_endpoint: bool | None = None,
        **kwargs: Any,
    ) -> None:
        if kwargs.get("on_finish_action", "") is None:  # for those two: their default
            del kwargs["on_finish_action"]
        pod_name = self._by_keyword("pod_name", pod_name, None if "name" in kwargs else pod_name)
        if pod_name is not None and kwargs.setdefault("name", pod_name) != pod_name:
            raise PoolSpecError(f"pod_name={pod_name!r} and name={kwargs['name']!r}.", "Give name= alone.")
        super().__init__(**kwargs)
        self._moved = {
            "cluster_name": cluster_name,
            "region": region,
            "aws_conn_id": aws_conn_id,
            "location": location,
            "project_id": project_id,
            "gcp_conn_id": gcp_conn_id,
            "impersonation_chain": impersonation_chain,
            "use_internal_ip": use_internal_ip,
            "use_dns_endpoint": use_dns_endpoint,
        }

    @classmethod
    def _check_partial(cls, made: OperatorPartial, kwargs: Mapping[str, Any], default_args: Mapping[str, Any]) -> None:
        super()._check_partial(made, kwargs, default_args)
        if isinstance(kwargs.get("gpu_pool"), GpuPool):
            moved = {name: value for name, value in kwargs.items() if name in {*_EKS, *_GKE, *_CONNECTION}}
            check_agrees(made.kwargs["task_id"], moved, kwargs["gpu_pool"])

    def _check_moved(self, pool: GpuPool) -> None:
        """Compare them with the pool, as far as both are rendered.

        Raises:
            PoolSpecError: Another cluster, or another connection, than the pool's.
        """
        given = {**self._moved, **{name: getattr(self, name, None) for name in _CONNECTION}}
        check_agrees(self.task_id, {name: value for name, value in given.items() if name in self._keywords}, pool)


def check_agrees(task_id: str, given: Mapping[str, Any], pool: GpuPool) -> None:
    """Raise PoolSpecError where an argument says something else than the pool; None and templates say nothing."""
    for name, value in given.items():
        if value is None or value == _ANY.get(name) or is_template(value):
            continue
        if value is not False and name in {*_EKS, *_GKE} and name not in _OF_KIND.get(pool.kind, (name,)):
            raise PoolSpecError(
                f"Task {task_id}: {name}={value!r}, but gpu_pool {pool.name} is a {type(pool).__name__}.",
                f"Leave {name} out: the pool says where its cluster is.",
                pool=pool.name,
            )
        own = getattr(pool, name, value)
        if not is_template(own) and _plain(own) != _plain(value):
            raise PoolSpecError(
                f"Task {task_id}: {name}={value!r}, but that of gpu_pool {pool.name} is {own!r}.",
                f"Leave {name} out, or give the pool of that cluster.",
                pool=pool.name,
            )


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list | tuple) else value
