"""The kinds of workload that this package runs from a manifest, and where each keeps its fields. Pure.

A table with a row per kind; each row is taken from the kind's own API types, which it names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_gpu_provider.cluster.model.pod_state import Json
from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.untrusted import plain

Manifest = dict[str, Any]

TRAINER = "node"
"""The replicated job, and its container, that trains, in all runtimes that come with Kubeflow Trainer."""

OWN_PATCH = "gpu-provider.airflow.apache.org/placement"
"""The manager of a TrainJob's patch: each of its managers has one."""

_COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"


@dataclass(frozen=True, kw_only=True)
class PodTemplate:
    """One of a workload's pod templates.

    Attributes:
        role: The kind's name for its pods, like "worker"; empty if all pods are alike.
        template: A PodTemplateSpec, in the manifest itself.
        pods: How many pods it makes at a time; None if only the cluster knows.
        trainer: A TrainJob's `trainer`, which has what its template cannot say about its container; None if the
            template has it.
    """

    role: str
    template: Manifest
    pods: int | None
    trainer: Manifest | None = None


FINISHED_STAYS_SECONDS = 24 * 3600
"""How long a finished object that is never collected is kept for inspection."""

COLLECTED_WITHIN_SECONDS = 3600
"""How long it stays at least: so long may no triggerer run, and no worker be free to read how it ended."""


@dataclass(frozen=True, kw_only=True)
class WorkloadEnd:
    """How a workload has ended, by its own status."""

    succeeded: bool
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class WorkloadKind:
    """A kind of object that creates pods.

    Attributes:
        templates: Yields its pod templates; raises KeyError or TypeError if the manifest has none.
        policy: The path to the fields `suspend` and `activeDeadlineSeconds` of the whole.
        limits: Yields the dicts whose `activeDeadlineSeconds` end the run.
        is_extendable: Those may be raised while it runs.
        ttl: The path to `ttlSecondsAfterFinished`; empty if it has none, or one that needs another field too.
        end: Returns how it has ended; None until then.
        role_label: The pods' label with their role; empty for none.
        index_labels: The pods' labels with their index in the role, the outermost first.
        controller: What creates its pods, by the name of its Deployment, which is part of the Deployment's name also
            where Helm adds a release's; empty for the control plane's own. It writes `status` as soon as it sees an
            object.
        source: Where this row is from.
    """

    kind: str
    api_version: str
    plural: str
    templates: Callable[[Manifest], Iterator[PodTemplate]]
    policy: tuple[str, ...] = ("spec",)
    limits: Callable[[Manifest], Iterator[Manifest]]
    is_extendable: bool = False
    ttl: tuple[str, ...] = ()
    end: Callable[[Json], WorkloadEnd | None]
    role_label: str = ""
    index_labels: tuple[str, ...] = ()
    controller: str = ""
    source: str

    @property
    def path(self) -> str:
        """The collection's path within a namespace, as "apis/batch/v1/namespaces/{namespace}/jobs"."""
        return f"apis/{self.api_version}/namespaces/{{namespace}}/{self.plural}"

    def pod_title(self, pod: Json) -> str:
        """Return a pod's name in the log, like "worker 1"; the pod's own name if it has no index."""
        labels = pod["metadata"].get("labels") or {}
        role = labels.get(self.role_label, "") if self.role_label else ""
        indexes = [labels[label] for label in self.index_labels if label in labels]
        if not indexes:
            return role if role == "head" else str(pod["metadata"]["name"])
        return f"{role} {'-'.join(indexes)}" if role else f"pod {'-'.join(indexes)}"

    def is_suspended(self, workload: Json) -> bool:
        """Return True if it is suspended and creates no pods."""
        policy: Any = workload
        for key in self.policy:
            policy = policy.get(key) or {}
        return bool(policy.get("suspend"))

    def suspension(self) -> Manifest:
        """Return the patch that suspends it."""
        patch: Manifest = {"suspend": True}
        for key in reversed(self.policy):
            patch = {key: patch}
        return patch

    def limit_time(self, manifest: Manifest, seconds: int) -> None:
        """Have the kind's own controller end it after so many seconds; a shorter time in the manifest is kept."""
        for each in self.limits(manifest):
            given = each.get("activeDeadlineSeconds")
            each["activeDeadlineSeconds"] = seconds if given is None else min(int(given), seconds)

    def limit_stay(self, manifest: Manifest) -> None:
        """Have the kind's own controller delete it some time after it has finished, but not before it is collected.

        The manifest's own time is kept, unless it is too short for that.
        """
        if self.ttl:
            policy = manifest
            for key in self.ttl:
                policy = policy.setdefault(key, {})
            given = policy.get("ttlSecondsAfterFinished")
            stays = FINISHED_STAYS_SECONDS if given is None else max(int(given), COLLECTED_WITHIN_SECONDS)
            policy["ttlSecondsAfterFinished"] = stays


def kind_of(manifest: Json) -> WorkloadKind:
    """Return the row for a manifest's kind and version; raises PoolSpecError if there is none."""
    name, version = manifest.get("kind"), manifest.get("apiVersion")
    kind = KINDS.get(str(name))
    if kind is None or kind.api_version != version:
        known = ", ".join(f"{each.kind} ({each.api_version})" for each in KINDS.values())
        raise PoolSpecError(
            f"The manifest has the kind {name!r} and the apiVersion {version!r}.",
            f"Known are {known}.",
        )
    return kind


def path_of(manifest: Json) -> str:
    """Return the path of the object, below the API server's address; it has its namespace and its name."""
    metadata = manifest["metadata"]
    return f"{kind_of(manifest).path.format(namespace=metadata['namespace'])}/{metadata['name']}"


def templates_of(manifest: Manifest) -> tuple[PodTemplate, ...]:
    """Return a manifest's pod templates; raises PoolSpecError if its kind is unknown, or it has none."""
    kind = kind_of(manifest)
    try:
        found = tuple(kind.templates(manifest))
    except (KeyError, TypeError, AttributeError) as error:
        raise PoolSpecError(
            f"The manifest of the {kind.kind} has no pod template where that kind keeps them ({error!r}).",
            f"See {kind.source}.",
        ) from error
    if not found:
        raise PoolSpecError(f"The manifest of the {kind.kind} has no pod template.", f"See {kind.source}.")
    return found


# -- where the pod templates are -----------------------------------------------------------------------------


def _of_job(manifest: Manifest) -> Iterator[PodTemplate]:
    spec = manifest["spec"]
    yield PodTemplate(role="", template=spec["template"], pods=_pods_of_job(spec))


def _of_job_set(manifest: Manifest) -> Iterator[PodTemplate]:
    for replicated in manifest["spec"]["replicatedJobs"]:
        spec = replicated["template"]["spec"]
        pods = _times(replicated.get("replicas", 1), _pods_of_job(spec))
        yield PodTemplate(role=replicated["name"], template=spec["template"], pods=pods)


def _of_train_job(manifest: Manifest) -> Iterator[PodTemplate]:
    """Yield the template of our own patch: a TrainJob's pods come from its runtime, which is in the cluster."""
    spec = manifest["spec"]
    spec["runtimeRef"]["name"]  # its only required field
    trainer: Manifest = spec.setdefault("trainer", {})
    pods = trainer.get("numNodes")
    template = _own_patch(spec)
    yield PodTemplate(role=TRAINER, template=template, pods=pods if isinstance(pods, int) else None, trainer=trainer)


def _own_patch(spec: Manifest) -> Manifest:
    patches: list[Manifest] = spec.setdefault("runtimePatches", [])
    for patch in patches:
        if patch["manager"] == OWN_PATCH:
            break
    else:
        job = {"name": TRAINER, "template": {"spec": {"template": {"metadata": {}, "spec": {}}}}}
        patch = {"manager": OWN_PATCH, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [job]}}}}
        patches.append(patch)
    (own,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    template: Manifest = own["template"]["spec"]["template"]
    return template


def _of_ray_job(manifest: Manifest) -> Iterator[PodTemplate]:
    spec = manifest["spec"]
    cluster = spec["rayClusterSpec"]
    yield PodTemplate(role="head", template=cluster["headGroupSpec"]["template"], pods=1)
    for group in cluster.get("workerGroupSpecs") or ():
        pods = _times(group.get("replicas", group.get("minReplicas", 0)), group.get("numOfHosts", 1))
        yield PodTemplate(role=group["groupName"], template=group["template"], pods=pods)
    if "submitterPodTemplate" in spec:
        yield PodTemplate(role="submitter", template=spec["submitterPodTemplate"], pods=1)


def _of_pytorch_job(manifest: Manifest) -> Iterator[PodTemplate]:
    for role, replicas in manifest["spec"]["pytorchReplicaSpecs"].items():
        pods = _times(replicas.get("replicas", 1), 1)
        yield PodTemplate(role=role.lower(), template=replicas["template"], pods=pods)


def _pods_of_job(spec: Json) -> int | None:
    parallelism, completions = spec.get("parallelism", 1), spec.get("completions")
    if not isinstance(parallelism, int):
        return None
    return min(parallelism, completions) if isinstance(completions, int) else parallelism


def _times(one: Any, other: Any) -> int | None:
    return one * other if isinstance(one, int) and isinstance(other, int) else None


# -- where the deadline is -----------------------------------------------------------------------------------


def _in_spec(manifest: Manifest) -> Iterator[Manifest]:
    yield manifest["spec"]


def _in_each_job(manifest: Manifest) -> Iterator[Manifest]:
    for replicated in manifest["spec"]["replicatedJobs"]:
        yield replicated["template"]["spec"]


def _in_run_policy(manifest: Manifest) -> Iterator[Manifest]:
    yield manifest["spec"].setdefault("runPolicy", {})


# -- how it ends ---------------------------------------------------------------------------------------------


def _by_conditions(*, good: str, bad: str) -> Callable[[Json], WorkloadEnd | None]:
    def end(workload: Json) -> WorkloadEnd | None:
        conditions = (workload.get("status") or {}).get("conditions") or ()
        for condition in conditions:
            if condition.get("status") == "True" and condition["type"] in (good, bad):
                return WorkloadEnd(
                    succeeded=condition["type"] == good,
                    reason=plain(condition.get("reason") or ""),
                    message=plain(condition.get("message") or ""),
                )
        return None

    return end


def _by_ray_status(workload: Json) -> WorkloadEnd | None:
    """Return the end of the RayJob, which may start again after a failure of Ray's own job (backoffLimit)."""
    status = workload.get("status") or {}
    deployment, job = status.get("jobDeploymentStatus", ""), status.get("jobStatus", "")
    if deployment not in ("Complete", "Failed", "ValidationFailed"):
        return None
    reason, message = plain(status.get("reason") or job), plain(status.get("message") or "")
    return WorkloadEnd(succeeded=deployment == "Complete" and job == "SUCCEEDED", reason=reason, message=message)


_ROWS = (
    WorkloadKind(
        kind="Job",
        api_version="batch/v1",
        plural="jobs",
        templates=_of_job,
        limits=_in_spec,
        is_extendable=True,
        ttl=("spec",),
        end=_by_conditions(good="Complete", bad="Failed"),
        index_labels=(_COMPLETION_INDEX,),
        source="kubernetes.io/docs/reference/kubernetes-api/workload-resources/job-v1",
    ),
    WorkloadKind(
        kind="JobSet",
        api_version="jobset.x-k8s.io/v1alpha2",
        plural="jobsets",
        templates=_of_job_set,
        limits=_in_each_job,
        ttl=("spec",),
        end=_by_conditions(good="Completed", bad="Failed"),
        role_label="jobset.sigs.k8s.io/replicatedjob-name",
        index_labels=("jobset.sigs.k8s.io/job-index", _COMPLETION_INDEX),
        controller="jobset",
        source="jobset.sigs.k8s.io/docs/reference/jobset.v1alpha2 (JobSet 0.12)",
    ),
    WorkloadKind(
        kind="TrainJob",
        api_version="trainer.kubeflow.org/v1alpha1",
        plural="trainjobs",
        templates=_of_train_job,
        limits=_in_spec,
        end=_by_conditions(good="Complete", bad="Failed"),
        role_label="jobset.sigs.k8s.io/replicatedjob-name",
        index_labels=(_COMPLETION_INDEX,),
        controller="trainer",
        source="pkg.go.dev/github.com/kubeflow/trainer/v2@v2.2.1/pkg/apis/trainer/v1alpha1 (Kubeflow Trainer 2.2)",
    ),
    WorkloadKind(
        kind="RayJob",
        api_version="ray.io/v1",
        plural="rayjobs",
        templates=_of_ray_job,
        limits=_in_spec,
        end=_by_ray_status,
        role_label="ray.io/node-type",
        controller="kuberay-operator",
        source="ray-project.github.io/kuberay/reference/api (KubeRay 1.6)",
    ),
    WorkloadKind(
        kind="PyTorchJob",
        api_version="kubeflow.org/v1",
        plural="pytorchjobs",
        templates=_of_pytorch_job,
        policy=("spec", "runPolicy"),
        limits=_in_run_policy,
        ttl=("spec", "runPolicy"),
        end=_by_conditions(good="Succeeded", bad="Failed"),
        role_label="training.kubeflow.org/replica-type",
        index_labels=("training.kubeflow.org/replica-index",),
        controller="training-operator",
        source="kubeflow.org/docs/components/trainer/legacy-v1 (Training Operator 1.9)",
    ),
)

KINDS: Mapping[str, WorkloadKind] = {row.kind: row for row in _ROWS}
"""The kinds, by name."""
