"""Arguments of GpuPodOperator, most of them GpuWorkloadOperator's too: what is refused when the DAG is parsed.

Those that KubernetesPodOperator has got since the oldest release this package takes work with any of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.cncf.kubernetes.utils.xcom_sidecar import PodDefaults

from airflow_gpu_provider.cluster.model.quantity import amount
from airflow_gpu_provider.errors import CheckpointUnusable, PoolSpecError
from airflow_gpu_provider.pools.gpu_pool import GpuPool
from airflow_gpu_provider.pools.values import is_dns_label, is_template, is_whole
from airflow_gpu_provider.scaling.state.gang_jobs import QUEUE_LABEL
from airflow_gpu_provider.tasks.pool_operator import PoolOperator, given_pool, seconds_of
from airflow_gpu_provider.training.place.checkpoint import check_volume_outlives_pod
from airflow_gpu_provider.training.place.pod_placement import check_given, check_gpus, check_shm

if TYPE_CHECKING:
    from airflow.sdk.definitions.mappedoperator import OperatorPartial
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
            raise PoolSpecError(f"on_kill_action={on_kill_action!r}.", f"Use {' or '.join(map(repr, _ON_KILL))}.")
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


_NAME = re.compile(r"[\w.-]{1,220}")  # as KubernetesPodOperator checks it at run time (validate_key)


_TEMPLATES = ("pod_template_file", "pod_template_dict", "full_pod_spec")
_GIVE_VOLUMES = ("volume_mounts", *_TEMPLATES)
"""The arguments by which a pod gets a volume in its base container."""


def check_checkpoint_is_mounted(
    checkpoint: object, given: Mapping[str, Any], pool: object, *, is_partial: bool = False
) -> None:
    """Raise CheckpointUnusable if `checkpoint` is a path in a container that no argument gives a volume that lasts.

    What they leave open is looked at before the pod is created. Of a mapped task, `is_partial`, arguments may follow.
    """
    is_path = isinstance(checkpoint, str) and not is_template(checkpoint) and checkpoint.startswith("/")
    if is_path and not is_partial and not any(given.get(name) for name in _GIVE_VOLUMES):
        raise CheckpointUnusable(
            f"checkpoint={checkpoint!r} would be lost when the pod restarts: the task mounts no volume.",
            "Mount a persistentVolumeClaim there, or give a URL like s3://bucket/folder.",
        )
    if isinstance(pool, GpuPool):
        check_volume_outlives_pod(checkpoint, given, pool)


def check_pod_arguments(given: Mapping[str, Any]) -> None:
    """Check the pool, the GPUs, the times, the names and the sizes, if they are among the arguments.

    Raises:
        PoolSpecError: One of them is invalid, or no machine of the pool has that many GPUs.
    """
    pool, namespace = given.get("gpu_pool"), given.get("namespace")
    if pool is not None:
        given_pool(pool)
    name = given.get("name")
    if isinstance(name, str) and not is_template(name) and not _NAME.fullmatch(name):
        raise PoolSpecError(
            f"name={name!r}.",
            "A name has letters, digits, hyphens, dots and underscores, at most 220 of them.",
        )
    if "gpus" in given and not is_whole(given["gpus"]):
        raise PoolSpecError(f"gpus={given['gpus']!r}.", "Use a whole number of at least 1.")
    if "gpus" in given and isinstance(pool, GpuPool) and pool.is_rendered:
        check_gpus(pool, int(given["gpus"]))
    for name in ("schedule_timeout_seconds", "startup_timeout_seconds"):
        if name in given and not (_is_number(given[name]) and given[name] > 0):
            raise PoolSpecError(f"{name}={given[name]!r}.", "Use a number of seconds greater than 0.")
    grace = given.get("termination_grace_period")
    if grace is not None and not (_is_number(grace) and grace >= 0 and grace == int(grace)):
        raise PoolSpecError(f"termination_grace_period={grace!r}.", "Use a whole number of seconds, at least 0.")
    if namespace is not None and not is_template(namespace) and not is_dns_label(namespace):
        raise PoolSpecError(
            f"namespace={namespace!r}.",
            "A namespace has lower-case letters, digits and hyphens, at most 63 of them.",
        )
    _check_shm(given.get("shm_size"))
    if isinstance(pool, GpuPool) and pool.is_rendered:
        check_shm(pool, given.get("shm_size"))
    check_given(given)
    _check_out_of_memory(given)
    _check_template_file(given.get("pod_template_file"))


def check_image(image: Any, given: Mapping[str, Any]) -> None:
    """Raise PoolSpecError for an image that is None or empty, where no template of the pod can have one.

    Where image= is left out, a subclass may set it before the pod is built.
    """
    if not image and not any(given.get(name) for name in _TEMPLATES):
        raise PoolSpecError(f"image={image!r}, and no template of the pod has an image.", "Give one.")


def _check_template_file(file: Any) -> None:
    """Raise PoolSpecError if there is no such file: KubernetesPodOperator would go on with an empty pod."""
    if isinstance(file, str) and file and not is_template(file) and not Path(file).is_file():
        raise PoolSpecError(
            f"pod_template_file={file!r} is no file, seen from {Path.cwd()}.",
            "Give its whole path, such as one that begins at the DAG file's folder.",
        )


def _check_out_of_memory(given: Mapping[str, Any]) -> None:
    chosen = given.get("on_gpu_out_of_memory", "fail")
    if chosen not in ("fail", "larger"):
        raise PoolSpecError(f"on_gpu_out_of_memory={chosen!r}.", "It is 'fail' or 'larger'.")
    labels = given.get("labels")
    if chosen == "fail":
        return
    if given.get("queue_name") or (isinstance(labels, Mapping) and labels.get(QUEUE_LABEL)):
        raise PoolSpecError(
            "on_gpu_out_of_memory='larger' in a Kueue queue, which chooses the machines itself.",
            "Leave out one of the two.",
        )
    if given.get("retries") == 0:
        raise PoolSpecError(
            "on_gpu_out_of_memory='larger' needs another try, and retries is 0.", "Give retries=1, or 2."
        )
    pool = given.get("gpu_pool")
    if not isinstance(pool, GpuPool) or not pool.is_rendered:
        return
    of_types = [pool.gpus_of(name) for name in pool.node_sizes]
    memories = {each.gpu.memory_gib for each in of_types if each is not None}
    if len(memories) == 1 and None not in of_types:
        raise PoolSpecError(
            f"on_gpu_out_of_memory='larger', and all machine types of pool {pool.name} have GPUs of"
            f" {memories.pop()} GiB: {', '.join(pool.node_sizes)}.",
            "Add a type with more memory per GPU to the pool.",
            pool=pool.name,
        )


def _check_shm(size: Any) -> None:
    if size is None:
        return
    try:
        amount(size if isinstance(size, str) else "")
    except ValueError as error:
        raise PoolSpecError(f"shm_size={size!r}.", 'Use a Kubernetes quantity as text, like "8Gi".') from error


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


# -- what GpuPodOperator(nodes=N) refuses: what cannot work on several nodes ----------------------------------

_OF_ONE_POD = {
    "hostname": "the Job gives each rank a host name of its own",
    "subdomain": "the ranks have that of the gang's headless Service",
    "callbacks": "they get one pod's events",
    "progress_callback": "it gets one pod's log",
}


def check_nodes(nodes: Any, pool: Any, given: Mapping[str, Any]) -> None:
    """Check `nodes`, and the other arguments of KubernetesPodOperator that were given with it.

    Raises:
        PoolSpecError: Not a whole number of at least 1, more than the pool may have, or an argument for a single pod.
    """
    if isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 1:
        raise PoolSpecError(f"nodes={nodes!r}.", "Use a whole number of at least 1; it cannot be a template.")
    if nodes == 1:
        return
    for name, why in _OF_ONE_POD.items():
        if given.get(name):
            raise PoolSpecError(f"{name}= with nodes={nodes}: {why}.", f"Leave {name} out.")
    if isinstance(pool, GpuPool) and not is_template(pool.max_nodes) and nodes > pool.max_nodes:
        raise PoolSpecError(
            f"nodes={nodes}, but pool {pool.name} has max_nodes={pool.max_nodes}.",
            "Ask for fewer nodes, or raise max_nodes: each rank has a node of its own.",
            pool=pool.name,
        )


def check_ranks(nodes: int, given: Mapping[str, Any]) -> None:
    """Check `log_ranks` and `hang_timeout`, among the arguments of a task.

    Raises:
        PoolSpecError: They are invalid, or do not fit the task's `nodes`, or no rank's output would be read.
    """
    ranks, seconds = ranks_of(given.get("log_ranks")), seconds_of("hang_timeout", given.get("hang_timeout"))
    if any(isinstance(rank, bool) or not isinstance(rank, int) for rank in ranks or ()):
        raise PoolSpecError(f"log_ranks={given['log_ranks']!r}.", "Give a rank, or a list of ranks.")
    if nodes == 1 and ranks is not None:
        raise PoolSpecError("log_ranks is for several nodes.", "Give nodes=.")
    if wrong := [rank for rank in ranks or () if not 0 <= rank < nodes]:
        raise PoolSpecError(f"log_ranks has {wrong}.", f"Ranks are 0 to {nodes - 1}.")
    if seconds is not None and (not given.get("get_logs", True) or given.get("log_formatter") is not None):
        raise PoolSpecError(
            "hang_timeout needs the pods' logs while they run.",
            "Leave out get_logs=False and log_formatter.",
        )


def check_partial_nodes(given: Mapping[str, Any], default_args: Mapping[str, Any]) -> None:
    """Check the arguments of a mapped task's `partial`; `nodes` may be among those it is expanded over.

    Raises:
        PoolSpecError: As for check_nodes and check_ranks.
    """
    nodes = given.get("nodes", 1)
    check_nodes(nodes, given.get("gpu_pool"), given)
    if "nodes" in given:
        check_ranks(nodes, given if nodes == 1 else {**default_args, **given})
    else:
        seconds_of("hang_timeout", given.get("hang_timeout"))


def ranks_of(given: int | Sequence[int] | None) -> list[Any] | None:
    return None if given is None else [*given] if isinstance(given, list | tuple) else [given]


# -- arguments of EksPodOperator and GKEStartPodOperator, for a DAG that migrates by changing the class ------------

# It adds gpu_pool=. They set the pod's cluster and identity, as gpu_pool does: what agrees with it is accepted and
# ignored, what contradicts it is refused. KubernetesPodOperator's own connection arguments are treated alike. What
# comes from default_args is not checked: it is meant for other operators.

_MOVED = frozenset(
    (
        *("cluster_name", "region", "aws_conn_id", "location", "project_id", "gcp_conn_id"),
        *("impersonation_chain", "use_internal_ip", "use_dns_endpoint"),
    )
)
_CONNECTION = ("kubernetes_conn_id", "cluster_context")
_ANY = {
    "project_id": "PROVIDE_PROJECT_ID",  # the Google provider's value for the connection's
    "kubernetes_conn_id": "kubernetes_default",  # KubernetesPodOperator's default, so it may not be intentional
}


class MovedArguments(PoolOperator):
    """Takes the other operators' own arguments, next to KubernetesPodOperator's. All default to the pool's values.

    Args:
        cluster_name, region, aws_conn_id, pod_name: As for EksPodOperator; `pod_name` is `name`.
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
            moved = {name: value for name, value in kwargs.items() if name in {*_MOVED, *_CONNECTION}}
            check_agrees(moved, kwargs["gpu_pool"])

    def _check_moved(self, pool: GpuPool) -> None:
        """Compare them with the pool, as far as both are rendered.

        Raises:
            PoolSpecError: Another cluster, or another connection, than the pool's.
        """
        given = {**self._moved, **{name: getattr(self, name, None) for name in _CONNECTION}}
        check_agrees({name: value for name, value in given.items() if name in self._keywords}, pool)


def check_agrees(given: Mapping[str, Any], pool: GpuPool) -> None:
    """Raise PoolSpecError if an argument contradicts the pool; None and templates are ignored."""
    of_pool = pool.cluster_arguments
    of_others = _MOVED - of_pool.keys() if _MOVED & of_pool.keys() else frozenset()
    for name, value in given.items():
        if value is None or value == _ANY.get(name) or is_template(value):
            continue
        if value is not False and name in of_others:
            raise PoolSpecError(
                f"{name}={value!r}, but gpu_pool {pool.name} is a {type(pool).__name__}.",
                f"Leave {name} out: the pool names its cluster.",
                pool=pool.name,
            )
        own = of_pool.get(name, value)
        if not is_template(own) and _plain(own) != _plain(value):
            raise PoolSpecError(
                f"{name}={value!r}, but that of gpu_pool {pool.name} is {own!r}.",
                f"Leave {name} out: the pool decides which cluster it is, and how that is reached.",
                pool=pool.name,
            )


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list | tuple) else value
