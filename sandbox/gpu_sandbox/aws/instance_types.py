"""The instance types that EC2 knows here: moto's table, the GPU types it lacks, and where each is offered.

moto's table is what DescribeInstanceTypes answered (github.com/getmoto/moto, scripts/get_instance_info.py), renewed
with moto's releases: every family but P2 and P3, which it has lost. Their rows are those of moto 4.2.14, of 2024-01-27.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from moto.ec2.exceptions import InvalidInstanceTypeError
from moto.ec2.models.instance_types import (
    INSTANCE_TYPE_OFFERINGS,
    INSTANCE_TYPES,
    InstanceType,
    InstanceTypeOfferingBackend,
)
from moto.ec2.utils import generic_filter

# Type: (vCPUs, GiB, GPUs, GPU, MiB of one GPU)
_P2_AND_P3: dict[str, tuple[int, int, int, str, int]] = {
    "p2.xlarge": (4, 61, 1, "K80", 12288),
    "p2.8xlarge": (32, 488, 8, "K80", 12288),
    "p2.16xlarge": (64, 732, 16, "K80", 12288),
    "p3.2xlarge": (8, 61, 1, "V100", 16384),
    "p3.8xlarge": (32, 244, 4, "V100", 16384),
    "p3.16xlarge": (64, 488, 8, "V100", 16384),
}

# What nvidia-smi shows, with dashes for blanks, by EC2's name and MiB: the appendix "Supported NVIDIA GPU Products" in
# the README of NVIDIA's driver; for parts of an L4, its vGPU types in NVIDIA's "Virtual GPU Software User Guide".
_PRODUCTS: dict[tuple[str, int], str] = {
    ("K80", 12288): "Tesla-K80",
    ("V100", 16384): "Tesla-V100-SXM2-16GB",
    ("V100", 32768): "Tesla-V100-SXM2-32GB",
    ("T4", 16384): "Tesla-T4",
    ("T4g", 16384): "NVIDIA-T4G",
    ("A10G", 22888): "NVIDIA-A10G",
    ("L4", 22888): "NVIDIA-L4",
    ("L4", 11444): "NVIDIA-L4-12Q",
    ("L4", 5722): "NVIDIA-L4-6Q",
    ("L4", 2861): "NVIDIA-L4-3Q",
    ("L40S", 45776): "NVIDIA-L40S",
    ("A100", 40960): "NVIDIA-A100-SXM4-40GB",
    ("A100", 81920): "NVIDIA-A100-SXM4-80GB",
    ("H100", 81920): "NVIDIA-H100-80GB-HBM3",
    ("H200", 144384): "NVIDIA-H200",
    ("B200", 183359): "NVIDIA-B200",
    ("B300", 275040): "NVIDIA-B300-SXM6-AC",
    ("RTX PRO 4500", 32768): "NVIDIA-RTX-PRO-4500-Blackwell-Server-Edition",
    ("RTX PRO Server 6000", 98304): "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition",
}


@dataclass(frozen=True, kw_only=True)
class NvidiaGpus:
    """The NVIDIA GPUs of an instance. count: those that pods can ask for, parts of a GPU included."""

    count: int
    product: str
    memory_mib: int


def _older_gpu_type(name: str) -> dict[str, Any]:
    """A type that moto's table has lost, shaped after one that it has."""
    vcpus, memory_gib, gpus, gpu, gpu_memory_mib = _P2_AND_P3[name]
    described: dict[str, Any] = copy.deepcopy(INSTANCE_TYPES["p3dn.24xlarge"])
    described["InstanceType"] = name
    described["VCpuInfo"] |= {"DefaultVCpus": vcpus, "DefaultCores": vcpus // 2, "DefaultThreadsPerCore": 2}
    described["MemoryInfo"] = {"SizeInMiB": memory_gib * 1024}
    (described["GpuInfo"]["Gpus"][0]) |= {
        "Name": gpu,
        "Count": gpus,
        "LogicalGpuCount": gpus,
        "MemoryInfo": {"SizeInMiB": gpu_memory_mib},
    }
    described["GpuInfo"]["TotalGpuMemoryInMiB"] = gpus * gpu_memory_mib
    described["InstanceStorageSupported"] = False
    described.pop("InstanceStorageInfo", None)
    return described


class _Described(InstanceType):
    """A type of our own, with the filters of moto's."""

    def __init__(self, described: dict[str, Any]) -> None:
        dict.__init__(self, described, name=described["InstanceType"])


class InstanceTypeCatalogue:
    """Types and offerings of one region. Every GPU type is offered in every zone until a zone is said to lack it."""

    def __init__(self, region: str) -> None:
        self._region = region
        self._types: dict[str, InstanceType] = {
            **{name: _Described(_older_gpu_type(name)) for name in _P2_AND_P3},
            **{name: InstanceType(name) for name in INSTANCE_TYPES},
        }
        self._not_offered: set[tuple[str, str]] = set()

    def known(self, instance_type: str) -> bool:
        return instance_type in self._types

    def vcpus(self, instance_type: str) -> int:
        """KeyError if the type is unknown."""
        return int(self._types[instance_type]["VCpuInfo"]["DefaultVCpus"])

    def memory_bytes(self, instance_type: str) -> int:
        """KeyError if the type is unknown."""
        return int(self._types[instance_type]["MemoryInfo"]["SizeInMiB"]) * 2**20

    def gpus(self, instance_type: str) -> int:
        """Whole ones, of any maker. KeyError if the type is unknown."""
        return sum(int(gpu["Count"]) for gpu in self._types[instance_type].get("GpuInfo", {}).get("Gpus", []))

    def nvidia_gpus(self, instance_type: str) -> NvidiaGpus | None:
        """None where there are none. KeyError if the type is unknown."""
        for gpu in self._types[instance_type].get("GpuInfo", {}).get("Gpus", []):
            if gpu["Manufacturer"] == "NVIDIA":
                mib = int(gpu["MemoryInfo"]["SizeInMiB"])
                product = _PRODUCTS.get((gpu["Name"], mib), f"NVIDIA-{gpu['Name']}".replace(" ", "-"))
                return NvidiaGpus(count=int(gpu["LogicalGpuCount"]), product=product, memory_mib=mib)
        return None

    def architectures(self, instance_type: str) -> list[str]:
        """KeyError if the type is unknown."""
        return list(self._types[instance_type]["ProcessorInfo"]["SupportedArchitectures"])

    def set_offered(self, instance_type: str, zone: str, offered: bool) -> None:
        """Say that a zone has, or lacks, a type. ValueError if the type is unknown."""
        if not self.known(instance_type):
            raise ValueError(f"unknown instance type {instance_type!r}")
        if offered:
            self._not_offered.discard((instance_type, zone))
        else:
            self._not_offered.add((instance_type, zone))

    def offered(self, instance_type: str, zone: str) -> bool:
        """The sandbox's zones offer every known type, unless `set_offered` said otherwise."""
        return self.known(instance_type) and (instance_type, zone) not in self._not_offered

    # The two API calls

    def describe_types(self, names: list[str], filters: Any, zones: Collection[str]) -> list[InstanceType]:
        """A type that no zone offers is none of the region's: EC2 does not know its name."""
        absent = {name for name, _ in self._not_offered if not any(self.offered(name, zone) for zone in zones)}
        unknown = {name for name in names if name in absent or name not in self._types}
        if unknown:
            raise InvalidInstanceTypeError(unknown, error_type="InvalidInstanceType")
        matches = [self._types[name] for name in names or self._types if name not in absent]
        return list(generic_filter(filters, matches)) if filters else matches

    def describe_offerings(
        self, location_type: str, filters: dict[str, Any], zones: dict[str, str]
    ) -> list[dict[str, str]]:
        """Offerings by `region`, `availability-zone` or `availability-zone-id`; `zones` is zone id by name."""
        offerings = list(INSTANCE_TYPE_OFFERINGS[location_type].get(self._region, []))
        listed = {(o["InstanceType"], o["Location"]) for o in offerings}
        by_location = {
            "region": {self._region: ""},
            "availability-zone": {zone: zone for zone in zones},
            "availability-zone-id": {zone_id: zone for zone, zone_id in zones.items()},
        }[location_type]
        for name, described in self._types.items():
            if described.get("GpuInfo"):
                offerings += [
                    {"InstanceType": name, "Location": location, "LocationType": location_type}
                    for location in by_location
                    if (name, location) not in listed
                ]
        matches = InstanceTypeOfferingBackend().matches_filters
        return [
            o
            for o in offerings
            if (o["InstanceType"], by_location.get(o["Location"])) not in self._not_offered
            and matches(o, filters, location_type)
        ]
