"""Every failure a user of this package can meet: one class each, with the remedy in the message.

A message is two sentences: what happened, with the names involved, and what to do. Whether another try of the task
can help is part of the type (`retryable`), and so is how long a wait tolerates it (`tolerated_for`; see `wait.retry`).
GpuErrors derive from AirflowException, so `retry_policy` sees them; none derives from AirflowFailException or
AirflowSensorTimeout, which it never sees.

    GpuError
      PoolSpecError                the DAG's author can fix it, at parse time where that is possible
                                   CheckpointUnusable  CodeUnusable
      ClusterNotFound  ClusterUnreachable  ConnectionNotFound  CredentialsError
      PermissionDenied             ServiceDisabled
      CloudError                   RequestRejected  ObjectRejected  ReferenceNotFound
      AdmissionDenied  ResourceQuotaExceeded  NamespaceTerminating
                                   a rule of the cluster rejects an object that is to be created
      PoolDrift  GroupFailed  GroupNotFound
      QuotaExceeded  OutOfStock    no capacity: by the account's limit, or the cloud's
      PriceLimitExceeded           all that the pool can have costs more than it pays
      PriceUnknown  BudgetExceeded a run may cost so much: how long that lasts is not known, or it is used
      NodesNotReady  GpusNotAllocatable
      NoProvisioner                the provisioner is not in the cluster, or would not add such nodes
      ControllerNotRunning         a workload's own controller does not act on it
      AutoscalerNotRunning  AutoscalerConflict  AutoscalerTagsMissing  AutoscalingDisabled
      DemandLockLost  DemandLockBusy
      PoolNotReleased              scale-down did not finish in time
      PoolNotUsable                a check before the run found what would stop it
      DemandNotExtended            a run's nodes cannot stay longer: it wants none, or no reason is given
      PoolInUse                    a pool is to be deleted while its nodes run pods or a run wants nodes
      DevicePluginConflict
      PodFailed                    PodUnschedulable PodImageError PodOutOfMemory PodPreempted EndUnknown PodDeadline
                                   PodResultInvalid GpuOutOfMemory DriverMissing BadGpu GpuIdle
                                   GpuHung (GangHung) GpuTooSmall RunTimeOver (a PodDeadline)
      PodResultLost                the pod succeeded, but its result cannot be read
      BlockFailed                  a task of a gpu_nodes block failed
    TaskKilled                     the task's process received SIGTERM; not a GpuError, nor an Exception

Triggers never raise: they yield `to_record()`, and the operator raises `from_record()` again with the same type.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, ClassVar, Self

from airflow.sdk.exceptions import AirflowException

from airflow_gpu_provider.untrusted import plain, storable

_LONGEST = 2**16
_NOT_AT_ALL = timedelta(0)
_MINUTES = timedelta(minutes=5)
"""For errors that may be permanent or transient: an API server that has just started answers 403 before it knows its
roles, a role binding is deleted to be created again, and IAM is eventually consistent."""


class GpuError(AirflowException):
    """Base of all errors of this package.

    Args:
        what: One sentence on what happened, with the pool, group, zone or quota code involved.
        fix: One sentence on what to do.
        details: Further facts as JSON values, for logs and for `retry_policy` rules.
    """

    retryable: ClassVar[bool] = True
    tolerated_for: ClassVar[timedelta | None] = _NOT_AT_ALL
    """How long a wait continues while calls keep failing with this error; None: until the wait's own deadline."""

    def __init__(self, what: str, fix: str = "", **details: Any) -> None:
        self.what, self.fix = plain(what, _LONGEST), plain(fix, _LONGEST)  # they quote logs, events and answers
        super().__init__(f"{self.what} {self.fix}".strip())
        self.details = details

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.what, self.fix, self.details)

    def to_record(self) -> dict[str, Any]:
        """Return the error as JSON values, for a trigger's event."""
        return {"type": type(self).__name__, "what": self.what, "fix": self.fix, "details": storable(self.details)}

    @staticmethod
    def from_record(record: dict[str, Any]) -> GpuError:
        """Return the error that `to_record` described; an unknown type (a newer release's) becomes a GpuError."""
        cls = {known.__name__: known for known in error_types()}.get(record["type"], GpuError)
        return cls(record["what"], record.get("fix", ""), **record.get("details", {}))


def _rebuild(cls: type[GpuError], what: str, fix: str, details: dict[str, Any]) -> GpuError:
    return cls(what, fix, **details)


def error_types() -> list[type[GpuError]]:
    """Return GpuError and every class derived from it."""
    found: list[type[GpuError]] = [GpuError]
    for cls in found:
        found.extend(sub for sub in cls.__subclasses__() if sub not in found)
    return found


class PoolSpecError(GpuError, ValueError):
    """A pool spec, or an argument used with it, cannot work as written."""

    retryable = False


class CheckpointUnusable(PoolSpecError):
    """The checkpoint is stored where it is lost together with the pod or its node."""


class CodeUnusable(PoolSpecError):
    """The folder that `code` names is not there, leads out of its bundle, or is too large."""


class ClusterNotFound(GpuError):
    """The cluster that the pool names does not exist in that region or location."""

    retryable = False


class ClusterUnreachable(GpuError):
    """The Kubernetes API server did not answer or failed, or a webhook that it calls did not answer."""

    tolerated_for: ClassVar[timedelta | None] = None


class ConnectionNotFound(GpuError):
    """Airflow has no such connection, did not answer, or cannot decrypt it: a worker cannot tell the three apart."""

    tolerated_for: ClassVar[timedelta | None] = _MINUTES

    @classmethod
    def named(cls, conn_id: str, argument: str, otherwise: str = "") -> Self:
        """Return the error for a connection that a pool names in `argument`; `otherwise` names an alternative."""
        return cls(
            f"The Airflow connection {conn_id!r} was not found.",
            f"Create it, or name another in {argument}{otherwise}; if it exists, Airflow's API did not answer or could"
            " not decrypt it (another Fernet key): see the API server's log.",
            connection=conn_id,
        )


class CredentialsError(GpuError):
    """The Airflow connection holds no credentials that the cloud or the cluster accepts.

    Or a metadata service, or the API server's token webhook, did not answer in time: a worker cannot tell which.
    """

    tolerated_for: ClassVar[timedelta | None] = _MINUTES


class PermissionDenied(GpuError):
    """The cloud or the cluster refused a call; the message names the permission that is missing."""

    retryable = False
    tolerated_for: ClassVar[timedelta | None] = _MINUTES


class ServiceDisabled(PermissionDenied):
    """A Google Cloud API that the pool needs is not enabled in the project; the message names it."""

    tolerated_for: ClassVar[timedelta | None] = _NOT_AT_ALL


class CloudError(GpuError):
    """The cloud's API failed in a way that has no type of its own; the message quotes the cloud's."""

    tolerated_for: ClassVar[timedelta | None] = None


class RequestRejected(CloudError):
    """The cloud rejects a request as invalid: repeating it gives the same answer.

    A cloud's services learn of each other's objects with a delay, so a wait tolerates this for a minute.
    """

    retryable = False
    tolerated_for: ClassVar[timedelta | None] = timedelta(minutes=1)


class ObjectRejected(CloudError):
    """The Kubernetes API server rejects an object as invalid; the message names the field."""

    retryable = False
    tolerated_for: ClassVar[timedelta | None] = _NOT_AT_ALL


class ReferenceNotFound(CloudError):
    """What an object names does not exist: its namespace, service account, PriorityClass, RuntimeClass or queue."""

    retryable = False
    tolerated_for: ClassVar[timedelta | None] = _NOT_AT_ALL


class AdmissionDenied(GpuError):
    """A policy of the cluster (an admission webhook, Pod Security, a LimitRange) rejects an object."""

    retryable = False


class ResourceQuotaExceeded(GpuError):
    """A ResourceQuota of the namespace is exhausted; the message names it, with what is requested, used and allowed."""

    tolerated_for: ClassVar[timedelta | None] = None


class NamespaceTerminating(GpuError):
    """The namespace is being deleted, and nothing can be created in it."""


class PoolDrift(GpuError):
    """Somebody else uses the same node group, or the same pool name, with another spec; nothing was changed."""

    retryable = False


class GroupFailed(GpuError):
    """The cloud could not create or update a node group, or refuses every launch; the message quotes its reason."""


class PoolNotEnsured(GpuError):
    """Nobody has prepared the pool: there is no node group, or no node, that a pod without a block could run on."""


class GroupNotFound(GpuError):
    """A node group that the pool should not create (`manage="scale"`) does not exist."""

    retryable = False


class QuotaExceeded(GpuError):
    """The account's quota is too small; the message names the quota, its limit, what is used and what is needed."""

    retryable = False


class PriceLimitExceeded(GpuError):
    """Each zone, instance type and capacity type of the pool costs more than its `max_price_per_hour`, now."""

    @classmethod
    def of(cls, pool: str, too_dear: Iterable[str]) -> Self:
        """Return the error for a pool all of whose candidates cost too much; `too_dear` says it of each."""
        return cls(
            f"Pool {pool}: every candidate costs too much: {'; '.join(too_dear)}.",
            "Raise max_price_per_hour, or name cheaper machines; spot prices change, so that another try may help.",
            pool=pool,
        )


class PriceUnknown(GpuError):
    """A run has a `max_cost`, and what nodes cost that the pool may have is not known; nothing was started."""


class BudgetExceeded(GpuError):
    """What is left of a run's `max_cost` is not enough to go on; its pods got SIGTERM, and its nodes go."""

    retryable = False


class OutOfStock(GpuError):
    """No zone, instance type and capacity type of the pool had capacity in time, or a queue has given up on it."""


NoCapacity = OutOfStock | QuotaExceeded
"""Why the cloud gives no machine now."""


class NodesNotReady(GpuError):
    """Machines run, but their nodes did not join the cluster, or did not become Ready, in time."""


class GpusNotAllocatable(GpuError):
    """Nodes are Ready, but nvidia.com/gpu did not become allocatable in time."""


class NoProvisioner(GpuError):
    """The provisioner of the pool's nodes is not in the cluster, or would never add nodes like these."""

    retryable = False


class ControllerNotRunning(GpuError):
    """Nothing acts on a workload: it has neither a status nor a pod. The message names the controller to look for."""

    retryable = False


class AutoscalerNotRunning(GpuError):
    """An autoscaler has to add the pool's nodes, and none reports from the cluster; nothing was created."""


class AutoscalerConflict(GpuError):
    """Another cluster-autoscaler is installed already; two would set the same groups' sizes."""

    retryable = False


class AutoscalerTagsMissing(GpuError):
    """External groups lack tags that cluster-autoscaler needs; the message has the command that adds them."""

    retryable = False


class AutoscalingDisabled(GpuError):
    """GKE has to add nodes, but external node pools are not autoscaled; the message has the command that enables it."""

    retryable = False


class DemandLockBusy(GpuError):
    """Another task held the pool's lock for longer than a decision takes."""

    tolerated_for: ClassVar[timedelta | None] = None


class DemandLockLost(GpuError):
    """This task stalled for so long that another one took the pool's lock; it wrote nothing after that."""

    tolerated_for: ClassVar[timedelta | None] = None


class ScaleDownIsOver(GpuError):
    """A task that requests nodes was cleared without the ScaleDownSensor that releases them."""

    retryable = False


class PoolNotReleased(GpuError):
    """Machines that no run wants were not removed in time; the message names them and what keeps them."""


class PoolNotUsable(GpuError):
    """A check found what would stop a run; nothing was changed."""

    retryable = False


class DemandNotExtended(GpuError):
    """What a run wants of a pool does not last longer: it wants nothing, or max_runtime needs a reason. Unchanged."""

    retryable = False


class PoolInUse(GpuError):
    """A pool that is to be deleted has pods on its nodes, or a run wants its nodes; nothing was deleted."""


class DevicePluginConflict(GpuError):
    """Another device plugin or DRA driver serves the pool's nodes; a second one would hand out GPUs twice."""

    retryable = False


class PodFailed(GpuError):
    """The training container ended with an error of its own; the message has its exit code and last words."""


class PodUnschedulable(PodFailed):
    """No node of the pool can take the pod, though no other pod ran there.

    A pod for which other pods leave too little room, or no GPU, does not count: it waits its turn, and a wait that is
    too long is a PodDeadline, which another try may avoid.
    """

    retryable = False


class PodImageError(PodFailed):
    """The pod's image cannot be pulled, or has no code for the GPU or the processor of the pool's machines."""

    retryable = False


class PodOutOfMemory(PodFailed):
    """The container was killed because it exceeded its memory limit."""

    retryable = False


class GpuOutOfMemory(PodFailed):
    """The training asked for more memory than the GPU has left; by its own last lines."""

    retryable = False


class GpuTooSmall(PodFailed):
    """The same where the task may have a larger GPU: the next try asks for `details["next_instance_type"]`."""


class DriverMissing(PodFailed):
    """The container found no GPU, or no driver that its CUDA version can use."""


class BadGpu(PodFailed):
    """The pod's log or the node's conditions show a broken GPU; its DAG's next pods avoid that node."""


class PodPreempted(PodFailed):
    """The pod's node was taken away (spot interruption, rebalancing, node failure) before it had finished."""


class EndUnknown(PodFailed):
    """Nobody saw how the pod, or the workload, ended: it is gone, or its node has lost it; it may have finished."""


LOST = (PodPreempted, EndUnknown)
"""Ends that were not the training's own, as far as anybody knows: another attempt may resume it."""


class PodResultInvalid(PodFailed):
    """The pod succeeded, but its result file is not JSON; the message has the file's name and its first characters."""

    retryable = False


class PodResultLost(GpuError):
    """The pod succeeded, and its result cannot be read: exec is refused, or its sidecar has never started or has died.

    Another try would repeat the training, to the same end.
    """

    retryable = False
    tolerated_for: ClassVar[timedelta | None] = _MINUTES


class PodDeadline(PodFailed):
    """The pod did not start, or did not finish, in its time."""


class RunTimeOver(PodDeadline):
    """The run's time on its pool, `max_runtime`, was over before a pod was created; no try has any of it left."""

    retryable = False


class GpuHung(PodFailed):
    """The training has printed nothing for hang_timeout, or its GPUs were busy at a draw near idle for that long.

    `details["last_lines"]` has what it printed last, and `details["gpus"]` the GPUs' use and power, if that is why.
    """


class GangHung(GpuHung):
    """The same of a gang, of all of whose ranks it is true; `details["last_lines"]` has each rank's last line."""


class GpuIdle(PodFailed):
    """The pod held GPUs and did not compute on them for idle_gpu_timeout; it was deleted."""


class BlockFailed(GpuError):
    """Tasks of a `gpu_nodes` block failed; it is what makes their DAG run fail."""

    retryable = False


class TaskKilled(BaseException):
    """The task's process received SIGTERM; what it had started was removed.

    Not an Exception, like KeyboardInterrupt: it is raised in a signal handler, so it surfaces wherever the program
    is, and libraries that take any Exception for a failed request (Airflow's secrets backends, botocore) continue.
    """

    retryable: ClassVar[bool] = True

    def __init__(self, what: str, fix: str = "") -> None:
        super().__init__(f"{what} {fix}".strip())
