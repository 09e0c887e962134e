"""Why a pod does not start although it could, and what to do about it: by the cause that its error quotes. Pure.

One table. Each row names who says so: a file of the project, or an issue that quotes the words. Below it, the pods that
the API server refuses to a Job controller, which only reports events (FailedCreate): a ResourceQuota, a LimitRange, a
policy or an invalid pod. The task would wait for pods that never come.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from airflow_gpu_provider.cluster.model.events import PodEvent, time_of
from airflow_gpu_provider.cluster.model.pod_state import ContainerState, Json, PodState
from airflow_gpu_provider.cluster.model.refusals import refusal_by_words
from airflow_gpu_provider.errors import GpuError, ReferenceNotFound
from airflow_gpu_provider.training.wait.pull import FIX, PULL_FAILED, why_not_pulled
from airflow_gpu_provider.training.wait.signs import advice_on

if TYPE_CHECKING:
    from airflow_gpu_provider.cluster.api.informer import Change
    from airflow_gpu_provider.cluster.api.watched import Resource


@dataclass(frozen=True)
class Hindrance:
    """What keeps a pod from starting, and what to do about it.

    Attributes:
        reasons: A pattern of the reason of an event, or of a container that waits.
        says: A pattern of its message.
        fix: What to do; may contain {node}.
        source: Who says so.
    """

    reasons: str
    says: str
    fix: str
    source: str


_CREATE = "Create what it names, or correct the pod's volumes, env_vars, secrets and env_from."
_NO_ADDRESS = (
    "No address is free for the pod: give the pool subnets, or a range for pods, with free addresses, or machines that"
    " hold more of them."
)
_NO_RUNTIME = (
    "The container runtime of node {node} does not know that handler: take runtimeClassName out, or look at the pod of"
    " the NVIDIA container toolkit there, which installs it."
)
_NETWORK = "The network plugin of node {node} does not work: look at its pod there, and retry the task."
_ATTACHED = (
    "Another node still holds the volume, as for six minutes after a node is lost: retry the task, or take a volume"
    " that several nodes can mount. kubectl get volumeattachments names that node."
)
_NO_CSI = (
    "The volume's CSI driver has no pod on node {node}: have its DaemonSet tolerate the pool's taints, and select its"
    " nodes."
)
_NO_SERVER = (
    "Node {node} does not get the volume from its server: check the network between them (security groups, firewalls,"
    " mount targets in the zone), and the server's own access rules."
)
_NO_DEVICE = (
    "The volume's device does not appear on node {node}: retry the task, the next try may get another node. If it"
    " lasts, see the log of the volume's driver there."
)
_NO_CACHE = (
    "The kubelet of node {node} does not get it from the API server: retry the task, the next try may get another node."
)
_FULL = "The disk of node {node} is full: retry the task, or take a larger one (the pool's disk)."
_SLOW = (
    "The container runtime of node {node} is too slow, mostly because its disk is: retry the task, or take a larger or"
    " faster disk (the pool's disk)."
)
_SEE_LOG = "See the log of container {container}: the task's own container starts only after it."
_LONGER = "Use a smaller image, or raise startup_timeout_seconds."

_NODE_GONE = "NodeNotReady"

_TABLE = (
    Hindrance(".*", r"no space left on device|disk quota exceeded", _FULL, "errno"),
    Hindrance(
        ".*",
        r"failed to sync (configmap|secret) cache",
        _NO_CACHE,
        "kubelet: util/manager/watch_based_manager.go; kubernetes#75260",
    ),
    # -- addresses, runtime, network -------------------------------------------------------------------------
    Hindrance(
        "FailedCreatePodSandBox",
        r"assign an IP|not enough IPs|no (free |more |available )*IP|range is full"
        r"|IPs? .{0,40}(exhausted|not available)|Insufficient(FreeAddresses|CidrBlocks)|unable to allocate IP|IP space",
        _NO_ADDRESS,
        "amazon-vpc-cni-k8s: cmd/routed-eni-cni-plugin/cni.go, #2814; karpenter-provider-aws#3989; cilium#10627;"
        " azure-container-networking: cns",
    ),
    Hindrance(
        ".*",
        r"no runtime for|[Rr]untime ?[Hh]andler \S+ (is )?not (supported|found)",
        _NO_RUNTIME,
        "containerd: internal/cri/config/config.go; gpu-operator#730",
    ),
    Hindrance(
        "FailedCreatePodSandBox|NetworkNotReady",
        r"(?i)\bcni\b|network|plugin type=",
        _NETWORK,
        "containerd; CNI plugins",
    ),
    Hindrance(
        "FailedCreatePodSandBox",
        "",
        "Node {node} cannot prepare the pod: retry the task, and if it lasts, look at the node's container runtime.",
        "kubelet: kuberuntime_manager.go",
    ),
    # -- volumes ---------------------------------------------------------------------------------------------
    Hindrance(
        "FailedAttachVolume",
        r"Multi-Attach|already (exclusively )?attached|VolumeInUse|RESOURCE_IN_USE",
        _ATTACHED,
        "kubernetes: controller/volume/attachdetach/reconciler; aws-ebs-csi-driver#542, #1107, #2818",
    ),
    Hindrance(
        "FailedAttachVolume",
        r"limit|too many|maximum|exceed",
        "The machine holds no more volumes: take a larger instance type, or fewer volumes.",
        "aws-ebs-csi-driver: AttachmentLimitExceeded; gcp-compute-persistent-disk-csi-driver",
    ),
    Hindrance(
        "FailedAttachVolume",
        "",
        "See what keeps the volume from node {node}: its zone, its driver's permissions, kubectl get pv.",
        "kubernetes: controller/volume/attachdetach",
    ),
    Hindrance(
        "FailedMount",
        r"^Unable to attach or mount volumes",
        "See what keeps the volume from node {node}: kubectl describe pod, and the log of its driver there.",
        "kubelet: volumemanager/volume_manager.go",
    ),
    Hindrance("Failed(Mount|MapVolume)", r"registered CSI drivers", _NO_CSI, "kubelet: volume/csi; efs-csi-driver#180"),
    Hindrance("Failed(Mount|MapVolume)", r"find device path", _NO_DEVICE, "aws-ebs-csi-driver: pkg/driver/node.go"),
    Hindrance(
        "Failed(Mount|MapVolume)",
        r"not found|non-existent|no such|couldn't find|not registered|does not exist|hostPath type check failed",
        _CREATE,
        "kubelet: volume/configmap, volume/secret, volume/projected",
    ),
    Hindrance(
        "Failed(Mount|MapVolume)",
        r"(?i)timed? ?out|deadline ?exceeded|exit status|access ?denied|forbidden|permission ?denied|refused"
        r"|unreachable|is the MGS running",
        _NO_SERVER,
        "kubelet: volumemanager; mount.nfs4; terraform-aws-eks-blueprints#1171; mountpoint-s3; lustre: mount_lustre.c",
    ),
    Hindrance(
        "Failed(Mount|MapVolume)",
        "",
        "See what its driver on node {node} says of the volume.",
        "kubelet: volumemanager",
    ),
    Hindrance(
        "FailedPrepareDynamicResources",
        "",
        "Look at the pods of the DRA driver on node {node}: they prepare the pod's claims.",
        "kubelet: cm/dra",
    ),
    # -- the container ---------------------------------------------------------------------------------------
    Hindrance(
        "CreateContainer(Config)?Error|Failed",
        r"runAsNonRoot|run as root|non-numeric user",
        "Set a numeric runAsUser in the security context: the image's own user is root, or has only a name.",
        "kubelet: kuberuntime/security_context.go",
    ),
    Hindrance("CreateContainerConfigError", "", _CREATE, "kubelet: kubelet_pods.go"),
    Hindrance(
        "CreateContainerError|RunContainerError",
        r"[Dd]eadline ?[Ee]xceeded|is reserved|\breserv\w+ (container|ctr) name|is already in use|tim(ed?|ing) ?out",
        _SLOW,
        "containerd: internal/cri/server/container_create.go, containerd#4604; amazon-linux-2023#1097; cri-o#8906",
    ),
    Hindrance(
        "CreateContainerError|RunContainerError",
        r"no running task found|sandbox \S+ not found",
        "The container runtime of node {node} has lost the pod's sandbox: retry the task.",
        "containerd: internal/cri/server/container_create.go, cri#316; k3s#1589",
    ),
    Hindrance(
        "CreateContainerError|RunContainerError",
        "no command specified",
        "The image has no command of its own: set cmds.",
        "containerd: internal/cri/opts/spec_opts.go",
    ),
    Hindrance(
        "CreateContainerError|RunContainerError",
        r"no such file|not found|failed to stat|subPath|cannot find volume",
        "Correct what it names: a path of the node or of a volume, or the image's command.",
        "containerd: internal/cri/server/container_create.go; runc",
    ),
    Hindrance(
        "CreateContainerError|RunContainerError",
        "",
        "Node {node} cannot create the container: correct what its runtime names, or retry the task.",
        "kubelet: kuberuntime_container.go",
    ),
    Hindrance("CrashLoopBackOff", "", _SEE_LOG, "kubelet: kuberuntime_manager.go"),
    Hindrance(
        "BackOff", r"restarting failed container[ =](?P<container>[\w.-]+)", _SEE_LOG, "kubelet: kuberuntime_manager.go"
    ),
    Hindrance(
        "Unhealthy",
        r"Startup probe",
        "A container that starts before the task's does not pass its startup probe: see its log.",
        "kubelet: prober.go",
    ),
    Hindrance(
        _NODE_GONE,
        "",
        "Node {node} stopped answering: retry the task, the next try may get another one.",
        "kubernetes: controller/nodelifecycle",
    ),
)

_ROWS = tuple((re.compile(each.reasons), re.compile(each.says), each.fix) for each in _TABLE)

# kubelet: pkg/kubelet/images/image_manager.go; containerd: internal/cri/server/sandbox_run.go
_PULLING = re.compile(r"^(Failed to pull|Back-off pulling) image|failed to (pull|get sandbox) image")

_PREPARED = frozenset({"Pulling", "Pulled", "Created", "Started"})
"""Events that come after the pod's volumes, its network and its sandbox are there."""


def standing(events: Sequence[PodEvent]) -> list[PodEvent]:
    """Return the events that may still be so, the newest first: without what the node has got over since."""
    found: list[PodEvent] = []
    is_attached = False
    for event in reversed(events):
        if event.reason in _PREPARED:
            break
        is_attached = is_attached or event.reason == "SuccessfulAttachVolume"
        if not (is_attached and event.reason == "FailedAttachVolume"):
            found.append(event)
    return found


def how_to_start(pod: PodState, events: Sequence[PodEvent]) -> tuple[str, PodEvent | None]:
    """Return what to do about a pod that did not start in time, and the event that says why, if one does.

    What a container waits for now counts first, then the newest event that names a cause; last what may follow from any
    other.
    """
    causes: list[tuple[ContainerState | PodEvent, str]] = [(container, container.name) for container in pod.waiting]
    causes += [(event, "") for event in standing(events)]
    for cause, container in sorted(causes, key=lambda each: _may_follow(each[0])):
        if fix := _fix(cause.reason, cause.message, node=pod.node or "", container=container):
            return fix, cause if isinstance(cause, PodEvent) else None
    is_pulling = bool(events) and events[-1].reason == "Pulling"
    running = [container.name for container in pod.others if container.status == "running"]
    return (_SEE_LOG.format(container=", ".join(running)) if running and not is_pulling else _LONGER), None


def _may_follow(cause: ContainerState | PodEvent) -> bool:
    """Return True for a node that no longer answers, and for the kubelet's summary of all volumes that are missing."""
    return cause.reason == _NODE_GONE or cause.message.startswith("Unable to attach or mount volumes")


def _fix(reason: str, message: str, **names: str) -> str:
    if (advice := advice_on(message)) and advice.cause != "gpu memory":
        return advice.fix
    if reason in PULL_FAILED or _PULLING.search(message):
        return FIX[why_not_pulled(message)].format(**names)
    for reasons, says, fix in _ROWS:
        if reasons.fullmatch(reason) and (found := says.search(message)):
            return fix.format(**names | found.groupdict())
    return ""


AT_LEAST = timedelta(minutes=2)
"""How long a seemingly final refusal is tolerated: policies are often created or changed just after."""

_CREATING = re.compile(r"^Error creating: ")  # batch/v1's Job controller, and all that use its pod control


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why pods are refused, and since when no missing pod has come."""

    error: GpuError
    since: datetime

    @property
    def in_words(self) -> str:
        return f"the API server refuses its pods: {self.error.what.rstrip('.')}"

    def error_at(self, now: datetime, schedule_seconds: float) -> GpuError | None:
        """Return the error once it has lasted too long.

        A refusal that may end by itself, an exhausted quota, is waited for as long as for a node; otherwise the error's
        own patience counts, or `AT_LEAST`; what the pods name and does not exist ends it at once, as for a single pod.
        """
        return self.error if now >= self.ends_at(schedule_seconds) else None

    def ends_at(self, schedule_seconds: float) -> datetime:
        """Return when it has lasted too long."""
        longest, borne = timedelta(seconds=schedule_seconds), self.error.tolerated_for
        at_least = timedelta(0) if isinstance(self.error, ReferenceNotFound) else AT_LEAST
        return self.since + (longest if borne is None else min(longest, max(borne, at_least)))


class RefusedPods:
    """What events say about the Jobs of one object; `is_own` takes a Job's name."""

    def __init__(self, events: Resource, is_own: Callable[[str], bool]) -> None:
        self._events = events
        self._is_own = is_own
        self._since: datetime | None = None
        self._last: tuple[datetime, GpuError] | None = None

    def take(self, changes: Iterable[Change]) -> list[Change]:
        """Take the feed's events about Jobs, and return the others; if they cannot be watched, nothing fails."""
        rest = []
        for change in changes:
            if change.resource != self._events:
                rest.append(change)
            elif change.kind == "present":
                self._take(change.raw)
        return rest

    def _take(self, event: Json) -> None:
        if event.get("reason") != "FailedCreate" or not self._is_own(
            (event.get("involvedObject") or {}).get("name", "")
        ):
            return
        at = time_of(event)
        self._since = min(filter(None, (self._since, at)))
        if self._last is None or at >= self._last[0]:
            self._last = at, refusal_by_words(_CREATING.sub("", event.get("message") or ""), "create", "pods")

    def forget(self) -> None:
        """Forget the refusal: all pods exist."""
        self._since = self._last = None

    def now(self) -> Refusal | None:
        """Return the present refusal."""
        if self._last is None or self._since is None:
            return None
        return Refusal(error=self._last[1], since=self._since)
