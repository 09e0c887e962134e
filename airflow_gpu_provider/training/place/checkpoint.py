"""Where a training keeps its checkpoint: what the pod is told about it, and which locations would not outlive a pod."""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kubernetes.client import ApiClient, CoreV1Api
from kubernetes.client import models as k8s

from airflow_gpu_provider.clouds.base import Group
from airflow_gpu_provider.cluster.api.api_errors import mapped
from airflow_gpu_provider.cluster.model.refusals import ObjectNotFound
from airflow_gpu_provider.errors import CheckpointUnusable, PermissionDenied, PodUnschedulable, PoolSpecError
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.values import is_template

ATTEMPT_VARIABLE = "AIRFLOW_GPU_ATTEMPT"
RUN_ID_VARIABLE = "AIRFLOW_GPU_RUN_ID"
CHECKPOINT_VARIABLE = "AIRFLOW_GPU_CHECKPOINT"

Groups = Callable[[], Sequence[Group]]
"""Returns the pool's groups. It calls the cloud, so it is used only if the pool's spec does not say enough."""

# Zone labels in a PersistentVolume's node affinity: Kubernetes' own, new and old, and those of the clouds' drivers.
_ZONE_LABELS = frozenset(
    {
        "topology.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/zone",
        "topology.ebs.csi.aws.com/zone",
        "topology.gke.io/zone",
    }
)

_TEMPLATES = ("pod_template_file", "pod_template_dict", "full_pod_spec")

_log = logging.getLogger(__name__)


def check_location(checkpoint: str) -> None:
    """Raise PoolSpecError unless `checkpoint` is a URL, or an absolute path in the container."""
    scheme, separator, rest = checkpoint.partition("://")
    is_url = bool(separator and scheme and rest) and scheme != "file"
    if not is_url and not checkpoint.startswith("/"):
        raise PoolSpecError(
            f"checkpoint={checkpoint!r}.",
            "Give a URL like s3://bucket/folder, or the path at which a volume of the pod is mounted.",
        )


def environment(*, checkpoint: str | None, run_id: str, attempt: int) -> dict[str, str]:
    """Return the variables that let a training continue where an earlier pod has stopped, and continue its trace."""
    variables = {ATTEMPT_VARIABLE: str(attempt), RUN_ID_VARIABLE: run_id, **_trace_context()}
    if checkpoint:
        variables[CHECKPOINT_VARIABLE] = f"{checkpoint.rstrip('/')}/{run_id}"
    return variables


def _trace_context() -> dict[str, str]:
    """Return TRACEPARENT and TRACESTATE of the task's span, W3C Trace Context; nothing where Airflow traces nothing.

    Airflow opens the span of a task where [traces] otel_on is set (airflow/sdk/execution_time/task_runner.py). Without
    it there is a context all the same, of a trace that nobody exports.
    """
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    if trace.get_current_span().is_recording():
        TraceContextTextMapPropagator().inject(carrier)
    return {name.upper(): value for name, value in carrier.items()}


def check_outlives_pod(checkpoint: str, pod: k8s.V1Pod, base_container: str, pool: GpuPool, groups: Groups) -> None:
    """Raise CheckpointUnusable if a path in the container is lost with the pod, or with its spot node."""
    if not checkpoint.startswith("/"):
        return
    volume = _volume_at(checkpoint, _spec(pod), base_container)
    if volume is None:
        gone = "no volume is mounted there, so it is on the container's own disk"
    elif "emptyDir" in volume or "ephemeral" in volume:
        gone = f"volume {volume['name']} is deleted with the pod"
    elif "hostPath" in volume and _markets(pool, groups) - {"ON_DEMAND"}:
        gone = f"volume {volume['name']} is a hostPath, and a spot node is removed with its disk"
    elif "hostPath" in volume and (provisioner := pool.provisioner):
        gone = f"volume {volume['name']} is a hostPath, and {provisioner} removes idle and spot nodes with their disks"
    else:
        return
    raise CheckpointUnusable(
        f"checkpoint={checkpoint!r} would be lost when the pod restarts: {gone}.",
        "Mount a persistentVolumeClaim there, or give a URL like s3://bucket/folder.",
        pool=pool.name,
    )


def check_volume_outlives_pod(checkpoint: object, given: Mapping[str, object], pool: GpuPool) -> None:
    """Raise CheckpointUnusable if a task's arguments mount a volume there that is lost with the pod, or its spot node.

    For when the DAG is parsed: what a template of the pod mounts, or no argument does, is looked at before the pod is
    created, and so are external groups, whose market the cloud alone knows.
    """
    if not isinstance(checkpoint, str) or not checkpoint.startswith("/") or not pool.is_rendered:
        return
    if any(given.get(name) for name in _TEMPLATES):
        return
    base = str(given.get("base_container_name") or "base")
    mounts = _models(given.get("volume_mounts"), k8s.V1VolumeMount)
    volumes = _models(given.get("volumes"), k8s.V1Volume)
    container = k8s.V1Container(name=base, volume_mounts=mounts)
    pod = k8s.V1Pod(spec=k8s.V1PodSpec(containers=[container], volumes=volumes))
    spec = _spec(pod)
    if not is_template([checkpoint, spec]) and _volume_at(checkpoint, spec, base) is not None:
        check_outlives_pod(checkpoint, pod, base, pool, tuple)


def _models(given: Any, model: type[Any]) -> list[Any]:
    """Return those of an argument's values that are of the client's model; none of one that is known later."""
    return [each for each in given if isinstance(each, model)] if isinstance(given, list | tuple) else []


def check_claims_reach(pod: k8s.V1Pod, pool: GpuPool, core: CoreV1Api, groups: Groups) -> None:
    """Raise PodUnschedulable if a claim of the pod is bound to a volume in zones in which the pool has no nodes."""
    sources = [volume.get("persistentVolumeClaim") for volume in _spec(pod).get("volumes") or ()]
    claims = [source["claimName"] for source in sources if source]
    for claim in claims:
        volume = _bound_volume(core, pod.metadata.namespace, claim)
        if volume is None:
            continue
        volume_zones = _zones_of(volume)
        zones = _pool_zones(pool, groups) if volume_zones else ()
        if zones and not volume_zones & set(zones):
            raise PodUnschedulable(
                f"Claim {claim} is bound to volume {volume.metadata.name} in {', '.join(sorted(volume_zones))}, "
                f"but pool {pool.name} has its nodes in {', '.join(zones)}.",
                "Give the pool the volume's zone, or use a volume that is reached from every zone.",
                pool=pool.name,
                claim=claim,
            )


def _markets(pool: GpuPool, groups: Groups) -> set[str]:
    """Return the capacity types of the pool's machines; only the cloud knows those of external groups."""
    if pool.manage == "scale":
        return {group.candidate.market for group in groups()}
    return set(pool.markets)


def _pool_zones(pool: GpuPool, groups: Groups) -> tuple[str, ...]:
    """Return the zones of the pool's machines; if its spec names none, those of its groups.

    A provisioner may bring the next machine in another zone than those that are there.
    """
    bound = () if pool.zones or pool.provisioner else groups()
    found = pool.zones or [zone for group in bound for zone in group.candidate.zone.split(", ") if zone]
    return tuple(dict.fromkeys(found))


def _spec(pod: k8s.V1Pod) -> dict[str, Any]:
    """Return the pod's spec as JSON: users may write parts of it as dicts, others as models."""
    spec: dict[str, Any] = ApiClient().sanitize_for_serialization(pod.spec)
    return spec


def _volume_at(path: str, spec: dict[str, Any], base_container: str) -> dict[str, Any] | None:
    base: dict[str, Any] = next(
        (container for container in spec["containers"] if container["name"] == base_container), {}
    )
    mounts = [mount for mount in base.get("volumeMounts") or () if _is_within(path, mount["mountPath"])]
    nearest = max(mounts, key=lambda mount: len(mount["mountPath"].rstrip("/")), default=None)
    return next((volume for volume in spec.get("volumes") or () if nearest and volume["name"] == nearest["name"]), None)


def _is_within(path: str, folder: str) -> bool:
    folder = posixpath.normpath(folder)
    return posixpath.commonpath([posixpath.normpath(path), folder]) == folder


def _bound_volume(core: CoreV1Api, namespace: str, claim: str) -> k8s.V1PersistentVolume | None:
    """Return the claim's volume; None if it has none yet, or if it may not be read."""
    try:
        with mapped("get", "persistentvolumeclaims"):
            name = core.read_namespaced_persistent_volume_claim(claim, namespace).spec.volume_name
        with mapped("get", "persistentvolumes"):
            return core.read_persistent_volume(name) if name else None
    except (ObjectNotFound, PermissionDenied) as error:
        _log.warning("In which zone the volume of claim %s/%s is, is not known: %s", namespace, claim, error)
        return None


def _zones_of(volume: k8s.V1PersistentVolume) -> frozenset[str]:
    """Return the zones from which the volume can be reached; none if it does not say."""
    required = volume.spec.node_affinity and volume.spec.node_affinity.required
    terms = required.node_selector_terms if required else ()
    expressions = [expression for term in terms for expression in term.match_expressions or ()]
    return frozenset(
        zone
        for expression in expressions
        if expression.key in _ZONE_LABELS and expression.operator == "In"
        for zone in expression.values
    )
