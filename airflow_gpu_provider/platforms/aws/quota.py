"""Whether the account's EC2 quotas have room for more nodes, before any is asked for.

EC2 limits the vCPUs of running instances, by family and market; a launch over the limit fails in every zone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from airflow_gpu_provider.accelerators import instance_type
from airflow_gpu_provider.errors import QuotaExceeded
from airflow_gpu_provider.platforms.aws.clients import AwsService
from airflow_gpu_provider.platforms.quota import Verdict, pass_over
from airflow_gpu_provider.pools import Candidate, EksGpuPool

# Code of the quota: (families, market), from the "Amazon EC2 endpoints and quotas" page of AWS's General Reference.
_QUOTAS: dict[str, tuple[re.Pattern[str], str]] = {
    "L-417A185B": (re.compile(r"p\d"), "ON_DEMAND"),
    "L-DB2E81BA": (re.compile(r"(g|gr|vt)\d"), "ON_DEMAND"),
    "L-7212CCBC": (re.compile(r"p[234]"), "SPOT"),
    "L-C4BD4855": (re.compile(r"p5"), "SPOT"),
    "L-3819A6DF": (re.compile(r"(g|gr|vt)\d"), "SPOT"),
}


@dataclass(frozen=True, kw_only=True)
class Quota:
    """One quota of the account: vCPUs that may run, and that do."""

    code: str
    name: str
    limit: float
    used: int

    @property
    def room(self) -> float:
        """How many more vCPUs it allows."""
        return max(0.0, self.limit - self.used)


def quota_code(instance_type: str, market: str) -> str | None:
    """Return the code of the quota that a machine counts against; None where it is unknown, as for newer families."""
    known = ((code, *quota) for code, quota in _QUOTAS.items())
    return next((code for code, families, of in known if of == market and families.match(instance_type)), None)


def read_quotas(
    service_quotas: AwsService, ec2: AwsService, candidates: Iterable[Candidate]
) -> tuple[dict[str, Quota], dict[str, int]]:
    """Return the quotas that the candidates count against, by code, and the vCPUs of their instance types.

    Raises:
        PermissionDenied: The account may not read quotas, or the instances that count.
    """
    candidates = tuple(candidates)
    codes = {code for c in candidates if (code := quota_code(c.instance_type, c.market))}
    if not codes:
        return {}, {}
    running = [(kind, market) for kind, market in _running(ec2) if quota_code(kind, market) in codes]
    vcpus = _vcpus(ec2, {kind for kind, _ in running} | {c.instance_type for c in candidates})
    quotas = {}
    for code in codes:
        answer = service_quotas.call("get_service_quota", ServiceCode="ec2", QuotaCode=code)["Quota"]
        used = sum(vcpus[kind] for kind, market in running if quota_code(kind, market) == code)
        quotas[code] = Quota(code=code, name=answer["QuotaName"], limit=answer["Value"], used=used)
    return quotas, vcpus


def judge(
    pool: EksGpuPool,
    missing: int,
    candidates: Sequence[Candidate],
    quotas: Mapping[str, Quota],
    vcpus: Mapping[str, int],
) -> Verdict:
    """Say which candidates cannot have the missing nodes. Pure.

    Where no quota has room for all of them, those that have room for some are used together.

    Raises:
        QuotaExceeded: All quotas together have too little room.
    """
    if not candidates:
        return Verdict()  # external groups that do not exist: a plan names them
    room = {c.group: _nodes(c, quotas, vcpus) for c in candidates}
    if _together(candidates, room) < missing:
        raise _exceeded(pool, missing, candidates, quotas, vcpus)
    return pass_over(candidates, missing, room, lambda candidate: _words(candidate, missing, quotas, vcpus))


def _nodes(candidate: Candidate, quotas: Mapping[str, Quota], vcpus: Mapping[str, int]) -> float:
    """Return for how many nodes of a candidate there is room."""
    code = quota_code(candidate.instance_type, candidate.market)
    return quotas[code].room // vcpus[candidate.instance_type] if code else math.inf


def _together(candidates: Iterable[Candidate], room: Mapping[str, float]) -> float:
    """Return for how many nodes there is room in all quotas: candidates of one quota share it."""
    by_code: dict[str | None, float] = {}
    for c in candidates:
        code = quota_code(c.instance_type, c.market)
        by_code[code] = max(by_code.get(code, 0), room[c.group])
    return sum(by_code.values())


def _exceeded(
    pool: EksGpuPool,
    missing: int,
    candidates: Sequence[Candidate],
    quotas: Mapping[str, Quota],
    vcpus: Mapping[str, int],
) -> QuotaExceeded:
    first = candidates[0]
    quota = quotas[str(quota_code(first.instance_type, first.market))]
    lines = dict.fromkeys(f"{c.machine}: {_words(c, missing, quotas, vcpus)}" for c in candidates)
    return QuotaExceeded(
        f"Pool {pool.name} needs {missing} more node{'s' * (missing > 1)}, and the account's quotas in {pool.region}"
        f" have no room: {'; '.join(lines)}.",
        f"Ask for a higher {quota.code} in Service Quotas (aws service-quotas request-service-quota-increase"
        f" --service-code ec2 --quota-code {quota.code} --desired-value ...), or want fewer GPUs.",
        quota=quota.name,
        code=quota.code,
        limit=quota.limit,
        used=quota.used,
        needed=missing * vcpus[first.instance_type],
    )


def _words(candidate: Candidate, missing: int, quotas: Mapping[str, Quota], vcpus: Mapping[str, int]) -> str:
    quota = quotas[str(quota_code(candidate.instance_type, candidate.market))]
    return (
        f"quota {quota.name!r} ({quota.code}) is {quota.limit:g} vCPUs, {quota.used} are used,"
        f" {missing * vcpus[candidate.instance_type]} more are needed"
    )


_RESERVED = ("capacity-block", "interruptible-capacity-reservation")
"""The InstanceLifecycle of machines that no quota of running instances counts: their capacity is reserved."""


def _running(ec2: AwsService) -> list[tuple[str, str]]:
    """Return type and market of each instance of the account that counts."""
    counting = {"Name": "instance-state-name", "Values": ["pending", "running"]}
    reservations = ec2.items("describe_instances", "Reservations", Filters=[counting])
    return [
        (instance["InstanceType"], "SPOT" if instance.get("InstanceLifecycle") == "spot" else "ON_DEMAND")
        for reservation in reservations
        for instance in reservation["Instances"]
        if instance.get("InstanceLifecycle") not in _RESERVED
    ]


def _vcpus(ec2: AwsService, types: Iterable[str]) -> dict[str, int]:
    known = {name: instance_type(name) for name in types if name}  # an external group may not say its types
    vcpus = {name: machine.vcpus for name, machine in known.items() if machine}
    newer = sorted(name for name, machine in known.items() if machine is None)
    if newer:
        found = ec2.items("describe_instance_types", "InstanceTypes", InstanceTypes=newer)
        vcpus |= {each["InstanceType"]: each["VCpuInfo"]["DefaultVCpus"] for each in found}
    return vcpus
