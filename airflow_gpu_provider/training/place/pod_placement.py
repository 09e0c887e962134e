"""Places a pod on a pool: everything that GpuPodOperator adds to the pod that KubernetesPodOperator builds. Pure.

The user's own spec is kept; if it contradicts the placement, that is a PoolSpecError. So is a container that could not
start: Linux starts no program with an argument or a variable above 128 KiB, and it would fail on its node, with exit
code 128 or 1, whatever the node. The LocalQueue of Kueue that an object waits in comes from an argument, or its label.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from posixpath import normpath
from typing import Any

from kubernetes.client import models as k8s
from kubernetes.utils.quantity import parse_quantity

from airflow_gpu_provider.accelerators import GPU_RESOURCE
from airflow_gpu_provider.cluster.model.node import DO_NOT_DISRUPT, INSTANCE_TYPE_LABEL, ZONE_LABEL
from airflow_gpu_provider.cluster.model.node_requirements import Requirement
from airflow_gpu_provider.cluster.model.pod_state import DEADLINE_ANNOTATION
from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL, GpuPool
from airflow_gpu_provider.pools.on_nodes import PodFabric
from airflow_gpu_provider.pools.values import is_dns_subdomain, is_template
from airflow_gpu_provider.pools.workload_placement import check_most, tolerations_of
from airflow_gpu_provider.scaling.state.gang_jobs import QUEUE_LABEL
from airflow_gpu_provider.training.code.code_maps import MOUNT_PATH
from airflow_gpu_provider.training.place.fit import check_fits, requests_of

SHM_PATH = "/dev/shm"
SHM_VOLUME = "gpu-pod-shm"

# A machine with a running pod must not count as idle: cluster-autoscaler drains half-used nodes, and Karpenter
# consolidates over bare pods.
_SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
_STAYS = {_SAFE_TO_EVICT: "false", DO_NOT_DISRUPT: "true"}


@dataclass(frozen=True, kw_only=True)
class Placement:
    """How a pod is placed.

    Attributes:
        gpus: GPUs for the base container; the others get none.
        base_container: Its name.
        shm_size: Size of /dev/shm, as a Kubernetes quantity. None: no limit of its own, so it may grow to the
            container's memory limit. "0": keep the container runtime's 64 MiB.
        active_deadline_seconds: After so many seconds the node itself ends the pod; a shorter one set by the user is
            kept. None: only the user's.
        labels, annotations: More of the package's own.
        avoid: What its node has to be, so that it is none of those with a broken GPU.
        queue: The Kueue LocalQueue that admits the pod; empty for none.
        instance_type: The machine type that its node has to be; empty for any of the pool's.
        off_spot: Its node must not be a spot machine.
        left_zones: Its node is elsewhere, if it can be.
        env: Variables for the base container; the user's variables with the same names take precedence.
        fabric: What the base container gets of its nodes' fabric; None where it trains on one node, or they have none.
        code: The volume that the base container has its code from; None for the image's own.
    """

    pool: GpuPool
    gpus: int
    base_container: str
    shm_size: str | None = None
    active_deadline_seconds: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    avoid: tuple[Requirement, ...] = ()
    queue: str = ""
    instance_type: str = ""
    off_spot: bool = False
    left_zones: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    fabric: PodFabric | None = None
    code: k8s.V1Volume | None = None


def place(pod: k8s.V1Pod, placement: Placement) -> k8s.V1Pod:
    """Return a copy of `pod` that runs on the pool.

    Raises:
        PoolSpecError: The pod's own spec contradicts the placement, or no Linux would start it.
        PodUnschedulable: No machine of the pool is as large as the pod.
    """
    pod = copy.deepcopy(pod)
    for container in (*pod.spec.containers, *(pod.spec.init_containers or ())):
        container.resources = resources_of(container.resources, f"The resources of container {container.name}")
    base = _base_container(pod, placement)
    _select_nodes(pod.spec, placement)
    _set_metadata(pod, placement)
    tolerated = [k8s.V1Toleration(**each) for each in tolerations_of(placement.pool)]
    pod.spec.tolerations = [*(pod.spec.tolerations or []), *tolerated]
    _require(
        pod.spec,
        (*_of_types(placement.pool), *placement.avoid, *_off_spot(placement)),
    )
    _prefer_not(pod.spec, placement.left_zones)
    _give_gpus(pod.spec, base, placement)
    if placement.fabric:
        _give_fabric(base, placement.fabric)
    if placement.pool.needs_host_ipc:
        check_shm(placement.pool, placement.shm_size)
        pod.spec.host_ipc = True
    else:
        _mount_shm(pod.spec, base, placement.shm_size)
    if placement.code is not None:
        _mount_code(pod.spec, base, placement.code)
    _tell(base, {**placement.env, **(placement.fabric.env if placement.fabric else {})})
    _limit_time(pod, placement.active_deadline_seconds)
    pod.spec.restart_policy = "Never"
    check_environment((*pod.spec.containers, *(pod.spec.init_containers or ())))
    check_fits(requests_of(pod.spec.to_dict()), placement.pool.node_sizes, pool=placement.pool.name)
    return pod


def check_gpus(pool: GpuPool, gpus: int) -> None:
    """Raise PoolSpecError if no machine of the pool has that many GPUs, or gives them to one pod."""
    if gpus < 1:
        raise PoolSpecError(f"gpus={gpus}.", "A GpuPodOperator asks for at least one GPU.")
    check_most(pool, gpus)


def check_shm(pool: GpuPool, size: str | None) -> None:
    """Raise PoolSpecError if /dev/shm is to have a size where pods use their node's own."""
    if pool.needs_host_ipc and size not in (None, "0"):
        raise PoolSpecError(
            f"shm_size={size!r}, but pods of pool {pool.name} share GPUs by MPS, and so have their node's /dev/shm.",
            "Leave shm_size out.",
            pool=pool.name,
        )


def resources_of(given: Any, named: str = "container_resources") -> k8s.V1ResourceRequirements | None:
    """Return a container's resources as the client's model; they may be given as a dict in the API's form.

    Other keys than Kubernetes', or something else, are a PoolSpecError, which calls them `named`.
    """
    if given is None or isinstance(given, k8s.V1ResourceRequirements):
        return given
    try:
        return k8s.V1ResourceRequirements(**given)
    except TypeError as error:
        raise PoolSpecError(
            f"{named} are no resource requirements of Kubernetes: {given!r} ({error}).",
            'Give k8s.V1ResourceRequirements(...), or a dict like {"limits": {"memory": "8Gi"}}.',
        ) from error


def check_resources(given: Arguments, pool: GpuPool) -> None:
    """Raise PodUnschedulable if no machine of the pool has what a task's arguments ask for, as far as they are known.

    Jinja expressions are left to `place`.
    """
    full = getattr(given.get("full_pod_spec"), "spec", None)
    spec: dict[str, Any] = full.to_dict() if isinstance(full, k8s.V1PodSpec) else {}
    base, *others = spec.get("containers") or [{}]
    if (resources := resources_of(given.get("container_resources"))) is not None:
        base = {**base, "resources": resources.to_dict()}
    first = {one["name"]: one for one in spec.get("init_containers") or ()}
    first |= {one.name: one.to_dict() for one in given.get("init_containers") or () if isinstance(one, k8s.V1Container)}
    spec |= {"containers": [base, *others], "init_containers": [*first.values()]}
    asked = [part.get("resources") for part in (spec, base, *others, *first.values())]
    if not is_template(asked):
        check_fits(requests_of(spec), pool.node_sizes, pool=pool.name)


def _gpus_asked(container: k8s.V1Container, part: str) -> Decimal | None:
    """Return the GPUs in the container's limits or requests; None if they have none."""
    asked = (getattr(container.resources, part, None) or {}).get(GPU_RESOURCE)
    try:
        return None if asked is None else parse_quantity(asked)
    except ValueError as error:
        raise PoolSpecError(
            f"Container {container.name} has {part} of {GPU_RESOURCE}={asked!r}, which is not a Kubernetes quantity.",
            "Give gpus= alone.",
        ) from error


def _base_container(pod: k8s.V1Pod, placement: Placement) -> k8s.V1Container:
    for container in pod.spec.containers:
        if container.name == placement.base_container:
            return container
    names = ", ".join(container.name for container in pod.spec.containers)
    raise PoolSpecError(
        f"The pod has no container {placement.base_container!r}, only {names}.",
        "Give base_container_name the name of the container that trains.",
    )


def _set_metadata(pod: k8s.V1Pod, placement: Placement) -> None:
    own = {POOL_LABEL: placement.pool.name, **placement.labels}
    if placement.queue:
        own[QUEUE_LABEL] = placement.queue
    pod.metadata.labels = {**(pod.metadata.labels or {}), **own}
    stays = _protection(pod.spec, placement.pool)
    pod.metadata.annotations = {**stays, **(pod.metadata.annotations or {}), **placement.annotations}


def _protection(spec: k8s.V1PodSpec, pool: GpuPool) -> dict[str, str]:
    """Return the annotations that keep autoscalers from evicting the pod, but still let it get a node."""
    is_refused = pool.refuses_not_to_evict(spec.node_selector)
    return {key: value for key, value in _STAYS.items() if not (is_refused and key == _SAFE_TO_EVICT)}


def _select_nodes(spec: k8s.V1PodSpec, placement: Placement) -> None:
    selector, own = spec.node_selector or {}, placement.pool.node_selector
    for label, value in own.items():
        if selector.get(label, value) != value:
            raise PoolSpecError(
                f"The pod's node selector asks for {label}={selector[label]}, but gpu_pool is {value}.",
                f"Leave {label} out of the node selector.",
            )
    types, asked = placement.pool.allowed.types, selector.get(INSTANCE_TYPE_LABEL)
    if types and asked is not None and asked not in types:
        raise PoolSpecError(
            f"The pod's node selector asks for {INSTANCE_TYPE_LABEL}={asked}, and pool {placement.pool.name} has"
            f" {', '.join(types)}.",
            "Add the type to the pool, or leave it out of the node selector.",
        )
    of_type = {INSTANCE_TYPE_LABEL: placement.instance_type} if placement.instance_type else {}
    spec.node_selector = {**selector, **own, **of_type}


def _give_gpus(spec: k8s.V1PodSpec, base: k8s.V1Container, placement: Placement) -> None:
    wanted = str(placement.gpus)
    for container in spec.containers:
        for part in ("limits", "requests"):
            asked = _gpus_asked(container, part)
            if asked and container is not base:
                raise PoolSpecError(
                    f"Container {container.name} asks for {asked} {GPU_RESOURCE}.",
                    f"Only the base container, {base.name}, gets GPUs: give gpus= and leave the others without.",
                )
            if container is base and asked not in (None, placement.gpus):
                raise PoolSpecError(
                    f"container_resources has {part} of {GPU_RESOURCE}={asked}, but gpus={wanted}.",
                    "Give gpus= alone.",
                )
    resources = base.resources or k8s.V1ResourceRequirements()
    resources.limits = {**(resources.limits or {}), GPU_RESOURCE: wanted}
    resources.requests = {**(resources.requests or {}), GPU_RESOURCE: wanted}
    base.resources = resources


def _give_fabric(base: k8s.V1Container, fabric: PodFabric) -> None:
    """Ask for the fabric's resources, unless the user has; Kubernetes takes huge pages beside CPU or memory only."""
    resources = base.resources
    for name, value in fabric.resources.items():
        asked = {**(resources.limits or {}), **(resources.requests or {})}.get(name, value)
        resources.limits = {**(resources.limits or {}), name: asked}
        resources.requests = {**(resources.requests or {}), name: asked}
    if not {"cpu", "memory"} & {*resources.limits, *resources.requests}:
        resources.requests["cpu"] = "1"


def _mount_shm(spec: k8s.V1PodSpec, base: k8s.V1Container, size: str | None) -> None:
    mounts = base.volume_mounts or []
    if size == "0" or any(mount.mount_path.rstrip("/") == SHM_PATH for mount in mounts):
        return
    memory = k8s.V1EmptyDirVolumeSource(medium="Memory", size_limit=size)
    spec.volumes = [*(spec.volumes or []), k8s.V1Volume(name=SHM_VOLUME, empty_dir=memory)]
    base.volume_mounts = [*mounts, k8s.V1VolumeMount(name=SHM_VOLUME, mount_path=SHM_PATH)]


def _mount_code(spec: k8s.V1PodSpec, base: k8s.V1Container, code: k8s.V1Volume) -> None:
    mounts = base.volume_mounts or []
    check_code_has_room(base.name, (mount.mount_path for mount in mounts))
    spec.volumes = [*(spec.volumes or []), code]
    base.volume_mounts = [*mounts, k8s.V1VolumeMount(name=code.name, mount_path=MOUNT_PATH, read_only=True)]
    base.working_dir = base.working_dir or MOUNT_PATH
    _tell(base, {"PYTHONPATH": MOUNT_PATH})


def check_code_has_room(container: str, mounted: Iterable[object]) -> None:
    """Raise PoolSpecError if a container with `code=` has another volume at /app, or below it: /app is read-only.

    Of the paths in `mounted`, Jinja expressions are left to `place`.
    """
    for path in mounted:
        if isinstance(path, str) and not is_template(path) and f"{normpath(path)}/".startswith(f"{MOUNT_PATH}/"):
            raise PoolSpecError(
                f"Container {container} mounts a volume at {path}, and code= puts the code at {MOUNT_PATH}, read-only.",
                "Mount the volume elsewhere, such as /outputs, or leave out code=.",
            )


def check_mounts_beside_code(given: Arguments) -> None:
    """Do as `check_code_has_room` for the mounts that a task's arguments give its base container."""
    full = getattr(given.get("full_pod_spec"), "spec", None)
    base = full.containers[0] if isinstance(full, k8s.V1PodSpec) and full.containers else None
    lists = (given.get("volume_mounts"), getattr(base, "volume_mounts", None))
    mounts = [mount for each in lists if isinstance(each, list | tuple) for mount in each]
    name = str(given.get("base_container_name") or "base")
    check_code_has_room(name, (getattr(each, "mount_path", None) for each in mounts))


def _of_types(pool: GpuPool) -> tuple[Requirement, ...]:
    """Return what keeps a pod off nodes that have the pool's label and a type that its spec does not name.

    Not where the spec names none. cluster-autoscaler knows the type of an empty group's nodes by itself:
    buildGenericLabels of its cloudprovider/aws/aws_manager.go; GKE's knows its own node pools.
    """
    types = pool.allowed.types
    return ({"key": INSTANCE_TYPE_LABEL, "operator": "In", "values": [*types]},) if types else ()


def _off_spot(placement: Placement) -> tuple[Requirement, ...]:
    labels = placement.pool.spot_labels if placement.off_spot else {}
    return tuple(
        {"key": label, "operator": "NotIn", "values": [*values]}
        if values
        else {"key": label, "operator": "DoesNotExist"}
        for label, values in labels.items()
    )


def _require(spec: k8s.V1PodSpec, requirements: Sequence[Requirement]) -> None:
    if not requirements:
        return
    others = [k8s.V1NodeSelectorRequirement(**each) for each in requirements]
    spec.affinity = spec.affinity or k8s.V1Affinity()
    node = spec.affinity.node_affinity = spec.affinity.node_affinity or k8s.V1NodeAffinity()
    key = "required_during_scheduling_ignored_during_execution"
    required = getattr(node, key) or k8s.V1NodeSelector(node_selector_terms=[k8s.V1NodeSelectorTerm()])
    for term in required.node_selector_terms:  # one matching term is enough, so each needs them
        term.match_expressions = [*(term.match_expressions or []), *others]
    setattr(node, key, required)


def _prefer_not(spec: k8s.V1PodSpec, zones: Sequence[str]) -> None:
    """Have the scheduler, and who brings nodes for the pod, prefer other zones; Karpenter drops it where it must."""
    if not zones:
        return
    other = k8s.V1NodeSelectorRequirement(key=ZONE_LABEL, operator="NotIn", values=[*zones])
    term = k8s.V1PreferredSchedulingTerm(weight=100, preference=k8s.V1NodeSelectorTerm(match_expressions=[other]))
    spec.affinity = spec.affinity or k8s.V1Affinity()
    node = spec.affinity.node_affinity = spec.affinity.node_affinity or k8s.V1NodeAffinity()
    key = "preferred_during_scheduling_ignored_during_execution"
    setattr(node, key, [*(getattr(node, key) or ()), term])


def _tell(base: k8s.V1Container, env: Mapping[str, str]) -> None:
    given = base.env or []
    names = {variable.name for variable in given}
    base.env = [*given, *(k8s.V1EnvVar(name=name, value=value) for name, value in env.items() if name not in names)]


def _limit_time(pod: k8s.V1Pod, seconds: int | None) -> None:
    known = [limit for limit in (pod.spec.active_deadline_seconds, seconds) if limit is not None]
    pod.spec.active_deadline_seconds = min(known, default=None)
    pod.metadata.annotations[DEADLINE_ANNOTATION] = str(min(known, default=""))


def check_queue_name(queue_name: str | None, labels: object = None) -> None:
    """Raise PoolSpecError unless it is a valid LocalQueue name, and the labels given with it name no other queue."""
    labelled = labels.get(QUEUE_LABEL) if isinstance(labels, Mapping) else None
    for what, name in ((f"queue_name={queue_name!r}", queue_name), (f"label {QUEUE_LABEL}={labelled!r}", labelled)):
        if name is not None and not is_template(name) and not is_dns_subdomain(name):
            raise PoolSpecError(
                f"{what} is no name of a LocalQueue.", "Give the name of a LocalQueue of Kueue, like team-a."
            )
    if queue_name is None or labelled is None or is_template(queue_name):
        return
    if labelled != queue_name and not is_template(labelled):
        raise PoolSpecError(f"queue_name={queue_name!r}, but the label {QUEUE_LABEL} is {labelled!r}.", "Give one.")


def queue_of(queue_name: str | None, labels: Mapping[str, str] | None) -> str:
    """Return the LocalQueue of an object with these labels, both rendered and checked; empty for none."""
    check_queue_name(queue_name, labels)
    return queue_name or str((labels or {}).get(QUEUE_LABEL, ""))


LARGEST = 2**17
"""Bytes of an argument, or of "NAME=value", with the NUL at its end: MAX_ARG_STRLEN, on pages of 4 KiB (execve(2))."""

ARGUMENTS, SOURCE = "__PYTHON_INPUT", "__PYTHON_SCRIPT"
"""The variables in which a decorated function's pickled arguments, and its source, go into the pod, in base64."""

_CALLED = {ARGUMENTS: "the function's arguments", SOURCE: "the function's source"}
_FIX = "Pass a path or a URL instead, and read the data from there: from a bucket, a volume or a ConfigMap."


def check_environment(containers: Iterable[Any]) -> None:
    """Raise PoolSpecError about an argument or a variable of these containers (V1Container) that is too large."""
    for container in containers:
        variables = {variable.name: variable.value or "" for variable in container.env or ()}
        words = [*(container.command or ()), *(container.args or ())]
        for what, size in _sizes(variables, words):
            _check(f"{what} of container {container.name}", size)


Arguments = Mapping[str, Any]
"""A task's arguments by name, as its author gave them."""


def check_given(given: Arguments) -> None:
    """Raise PoolSpecError about what is too large among a task's own `env_vars`, `cmds` and `arguments`."""
    variables = given.get("env_vars") or {}
    if not isinstance(variables, Mapping):
        variables = {getattr(each, "name", ""): getattr(each, "value", "") for each in variables}
    words = [word for name in ("cmds", "arguments") for word in given.get(name) or () if isinstance(word, str)]
    for what, size in _sizes(variables, words):
        _check(what, size)


def check_pickled(size: int) -> None:
    """Raise PoolSpecError if a decorated function's arguments are too large; `size` is in bytes, pickled."""
    _check(_CALLED[ARGUMENTS], len(ARGUMENTS) + len("=\0") + -(-size // 3) * 4)


def _sizes(variables: Mapping[str, Any], words: Iterable[str]) -> Iterator[tuple[str, int]]:
    for name, value in variables.items():
        if isinstance(value, str):
            yield _CALLED.get(name, f"the environment variable {name}"), len(f"{name}={value}\0".encode())
    for word in words:
        yield "an argument", len(f"{word}\0".encode())


def _check(what: str, size: int) -> None:
    if size > LARGEST:
        most = f"Linux takes in one argument or environment variable, {LARGEST // 1024} KiB"
        raise PoolSpecError(f"{what[0].upper()}{what[1:]}: {size / 1024:.0f} KiB are more than {most}.", _FIX)
