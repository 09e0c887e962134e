"""RefusedGroups: node groups that EKS refuses to create: which pass, which a pool does without, and which end a run.

EKS's InvalidRequestException is "invalid given the state of the cluster" (botocore's eks): while one is updated, for
ten minutes or more, no group is made (eksctl-io/eksctl#2244). And a launch template, placement group or role that was
made a moment ago is not known to EKS yet ("Eventual consistency in the Amazon EC2 API"; IAM's user guide says the same
of roles): the answer is then that of a spec that is wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

from airflow_gpu_provider.clouds.answers import has_code, message_of
from airflow_gpu_provider.clouds.aws.pool import EksGpuPool
from airflow_gpu_provider.errors import CloudError, GpuError, PoolSpecError, RequestRejected

WRONG = ("InvalidParameterException", "InvalidRequestException")
"""What EKS answers to a request that it does not accept; an InvalidRequestException may pass."""

SHOWN_WITHIN = timedelta(seconds=45)
"""How long services may not know of each other's objects; a wait tolerates a RequestRejected a little longer."""

_MAY_PASS = "Where it names what was made a moment ago, EKS knows that soon; else correct the pool's spec."


class RefusedGroups:
    """Of one pool, through the tries of one run. The times are AWS's."""

    def __init__(self, pool: EksGpuPool) -> None:
        self._pool = pool
        self._since: dict[str, datetime] = {}

    def error(self, group: str, refusal: CloudError, cluster_status: str) -> CloudError:
        """Return what a refusal to create a group is: of a cluster that is busy one that is waited for."""
        what = f"Pool {self._pool.name}: EKS refuses to create {group}: {message_of(refusal).rstrip('.')}"
        if has_code(refusal, "InvalidRequestException") and cluster_status != "ACTIVE":
            return CloudError(
                f"{what}; cluster {self._pool.cluster_name} is {cluster_status}.",
                "It is tried again: an update of a cluster ends by itself.",
                **refusal.details,
            )
        return RequestRejected(f"{what}.", _MAY_PASS, **refusal.details)

    def judge(
        self, refused: Mapping[str, GpuError], now: datetime, *, ready: Collection[str], usable: Collection[str]
    ) -> None:
        """Return where the pool goes on without the groups that were refused.

        Args:
            refused: Their errors, by group: those of `error`, and PoolSpecErrors.
            now: The time of the refusals.
            ready: Groups of the pool that can have machines at once.
            usable: Those and the ones that are being made.

        Raises:
            RequestRejected: What a group names may still become known to EKS; a wait tolerates it.
            CloudError: The cluster is busy, and nothing is ready; a wait tolerates it.
            PoolSpecError: EKS does not create a group, and nothing else is usable.
        """
        self._since = {group: self._since.get(group, now) for group in refused}
        for group, error in refused.items():
            if isinstance(error, RequestRejected) and now - self._since[group] < SHOWN_WITHIN:
                raise error
        for error in refused.values():
            if type(error) is CloudError and not ready:
                raise error
        for error in refused.values():
            if not usable:
                raise PoolSpecError(error.what, "Correct the pool's spec.", **error.details) from error
