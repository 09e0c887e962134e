"""Service quotas of EC2, in vCPUs by family and market: the Service Quotas API, and what a launch would exceed."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from moto.core.responses import BaseResponse
from moto.servicequotas.exceptions import NoSuchResource

from gpu_sandbox.aws.interface import Market
from gpu_sandbox.faults import Faults

DEFAULT_VCPUS = 256.0


@dataclass(frozen=True, kw_only=True)
class _Bucket:
    code: str
    name: str
    families: re.Pattern[str]
    market: Market


def _bucket(code: str, name: str, families: str, market: Market) -> _Bucket:
    return _Bucket(code=code, name=name, families=re.compile(families), market=market)


_BUCKETS = (
    _bucket("L-417A185B", "Running On-Demand P instances", r"p\d", "on-demand"),
    _bucket("L-DB2E81BA", "Running On-Demand G and VT instances", r"(g|gr|vt)\d", "on-demand"),
    _bucket("L-7212CCBC", "All P4, P3 and P2 Spot Instance Requests", r"p[234]", "spot"),
    _bucket("L-C4BD4855", "All P5 Spot Instance Requests", r"p5", "spot"),
    _bucket("L-3819A6DF", "All G and VT Spot Instance Requests", r"(g|gr|vt)\d", "spot"),
    _bucket(
        "L-1216C47A",
        "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances",
        r"(a|c|d|h|i|im|is|m|r|t|z)\d",
        "on-demand",
    ),
    _bucket(
        "L-34B43A08",
        "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests",
        r"(a|c|d|h|i|im|is|m|r|t|z)\d",
        "spot",
    ),
)


class VcpuQuotas:
    """The account's quotas in one region; each starts at 256 vCPUs."""

    def __init__(self, *, region: str, account_id: str, faults: Faults) -> None:
        self._faults = faults
        self._region = region
        self._account_id = account_id
        self._values = {bucket.code: DEFAULT_VCPUS for bucket in _BUCKETS}

    def set(self, quota_code: str, vcpus: float) -> None:
        """ValueError if the code is none of EC2's vCPU quotas."""
        if quota_code not in self._values:
            raise ValueError(f"unknown quota code {quota_code!r}; known: {sorted(self._values)}")
        self._values[quota_code] = float(vcpus)

    def code_for(self, instance_type: str, market: Market) -> str | None:
        """The quota that a type counts against; None for a family without one here."""
        for bucket in _BUCKETS:
            if bucket.market == market and bucket.families.match(instance_type):
                return bucket.code
        return None

    def value(self, quota_code: str) -> float:
        """A fault's limit, else the account's own."""
        declared = self._faults.quota(quota_code)
        return self._values[quota_code] if declared is None else declared

    def describe(self, quota_code: str) -> dict[str, Any]:
        """One quota in the API's shape. NoSuchResource if the code is unknown."""
        bucket = next((b for b in _BUCKETS if b.code == quota_code), None)
        if bucket is None:
            raise NoSuchResource
        return {
            "ServiceCode": "ec2",
            "ServiceName": "Amazon Elastic Compute Cloud (Amazon EC2)",
            "QuotaArn": f"arn:aws:servicequotas:{self._region}:{self._account_id}:ec2/{quota_code}",
            "QuotaCode": quota_code,
            "QuotaName": bucket.name,
            "Value": self.value(quota_code),
            "Unit": "None",
            "Adjustable": True,
            "GlobalQuota": False,
            "QuotaAppliedAtLevel": "ACCOUNT",
        }

    def describe_all(self) -> list[dict[str, Any]]:
        return [self.describe(bucket.code) for bucket in _BUCKETS]


class ServiceQuotasResponse(BaseResponse):
    """The Service Quotas API, for the service code `ec2`."""

    def __init__(self, quotas: VcpuQuotas) -> None:
        super().__init__(service_name="service-quotas")
        self._quotas = quotas

    def get_service_quota(self) -> str:
        self._check_service()
        return json.dumps({"Quota": self._quotas.describe(self._get_param("QuotaCode"))})

    def get_aws_default_service_quota(self) -> str:
        self._check_service()
        default = self._quotas.describe(self._get_param("QuotaCode")) | {"Value": DEFAULT_VCPUS}
        return json.dumps({"Quota": default})

    def list_service_quotas(self) -> str:
        self._check_service()
        return json.dumps({"Quotas": self._quotas.describe_all()})

    def list_aws_default_service_quotas(self) -> str:
        self._check_service()
        defaults = [quota | {"Value": DEFAULT_VCPUS} for quota in self._quotas.describe_all()]
        return json.dumps({"Quotas": defaults})

    def _check_service(self) -> None:
        if self._get_param("ServiceCode") != "ec2":
            raise NoSuchResource
