"""Whether the account's EC2 quotas have room for more nodes, before any is asked for.

EC2 limits the vCPUs of running instances, by family and market; a launch over the limit fails in every zone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from airflow_gpu_provider.clouds.aws.clients import AwsService, instances
from airflow_gpu_provider.clouds.aws.machine_types import instance_type
from airflow_gpu_provider.clouds.aws.pool import EksGpuPool
from airflow_gpu_provider.clouds.quota import Limited, Quota, Verdict, judge_all
from airflow_gpu_provider.pools import Candidate

# Code of the quota: (families, market), from the "Amazon EC2 endpoints and quotas" page of AWS's General Reference.
_QUOTAS: dict[str, tuple[re.Pattern[str], str]] = {
    "L-417A185B": (re.compile(r"p\d"), "ON_DEMAND"),
    "L-DB2E81BA": (re.compile(r"(g|gr|vt)\d"), "ON_DEMAND"),
    "L-7212CCBC": (re.compile(r"p[234]"), "SPOT"),
    "L-C4BD4855": (re.compile(r"p5"), "SPOT"),
    "L-3819A6DF": (re.compile(r"(g|gr|vt)\d"), "SPOT"),
}


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
        name, limit = answer["QuotaName"], answer["Value"]
        quotas[code] = Quota(
            name=name,
            limit=limit,
            used=used,
            words=f"quota {name!r} ({code}) is {limit:g} vCPUs, {used} are used",
            request=f"{code} in Service Quotas (aws service-quotas request-service-quota-increase --service-code ec2"
            f" --quota-code {code} --desired-value ...)",
            code=code,
        )
    return quotas, vcpus


def judge(
    pool: EksGpuPool,
    missing: int,
    candidates: Iterable[Candidate],
    quotas: Mapping[str, Quota],
    vcpus: Mapping[str, int],
) -> Verdict:
    """Say which candidates cannot have the missing nodes; see `judge_all`. Pure."""
    codes = {each: quota_code(each.instance_type, each.market) for each in candidates}
    limited = [
        Limited(candidate=each, units=vcpus[each.instance_type] if code else 0, either=[quotas[code]] if code else ())
        for each, code in codes.items()
    ]
    return judge_all(pool, missing, limited, whose=f"the account's quotas in {pool.region}")


_RESERVED = ("capacity-block", "interruptible-capacity-reservation")
"""The InstanceLifecycle of machines that no quota of running instances counts: their capacity is reserved."""


def _running(ec2: AwsService) -> list[tuple[str, str]]:
    """Return type and market of each instance of the account that counts; the others may be many thousands."""
    filters = [
        {"Name": "instance-state-name", "Values": ["pending", "running"]},
        {"Name": "instance-type", "Values": ["g*", "p*", "vt*"]},
    ]
    return [
        (instance["InstanceType"], "SPOT" if instance.get("InstanceLifecycle") == "spot" else "ON_DEMAND")
        for instance in instances(ec2, Filters=filters)
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
