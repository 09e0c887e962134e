"""The instance types that EC2 knows here: moto's table, the GPU types it lacks, and where each is offered."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

from moto.ec2.exceptions import InvalidInstanceTypeError
from moto.ec2.models.instance_types import (
    INSTANCE_TYPE_OFFERINGS,
    INSTANCE_TYPES,
    InstanceType,
    InstanceTypeOfferingBackend,
)
from moto.ec2.utils import generic_filter


def _older_gpu_type(
    name: str, *, vcpus: int, memory_gib: int, gpus: int, gpu: str, gpu_memory_mib: int
) -> dict[str, Any]:
    """A type that moto's table has lost, shaped after one that it has."""
    described: dict[str, Any] = copy.deepcopy(INSTANCE_TYPES["p3dn.24xlarge"])
    described["InstanceType"] = name
    described["VCpuInfo"] |= {"DefaultVCpus": vcpus, "DefaultCores": vcpus // 2, "DefaultThreadsPerCore": 2}
    described["MemoryInfo"] = {"SizeInMiB": memory_gib * 1024}
    described["GpuInfo"] = {
        "Gpus": [
            {
                "Name": gpu,
                "Manufacturer": "NVIDIA",
                "Count": gpus,
                "MemoryInfo": {"SizeInMiB": gpu_memory_mib},
            }
        ],
        "TotalGpuMemoryInMiB": gpus * gpu_memory_mib,
    }
    described["InstanceStorageSupported"] = False
    described.pop("InstanceStorageInfo", None)
    return described


def _missing_from_moto() -> dict[str, dict[str, Any]]:
    specs = [
        ("p2.xlarge", 4, 61, 1, "K80", 11441),
        ("p2.8xlarge", 32, 488, 8, "K80", 11441),
        ("p2.16xlarge", 64, 732, 16, "K80", 11441),
        ("p3.2xlarge", 8, 61, 1, "V100", 16384),
        ("p3.8xlarge", 32, 244, 4, "V100", 16384),
        ("p3.16xlarge", 64, 488, 8, "V100", 16384),
        ("p4de.24xlarge", 96, 1152, 8, "A100", 81920),
        ("p5.48xlarge", 192, 2048, 8, "H100", 81920),
        ("p5e.48xlarge", 192, 2048, 8, "H200", 144384),
        ("p5en.48xlarge", 192, 2048, 8, "H200", 144384),
    ]
    return {
        name: _older_gpu_type(name, vcpus=vcpus, memory_gib=gib, gpus=gpus, gpu=gpu, gpu_memory_mib=mib)
        for name, vcpus, gib, gpus, gpu, mib in specs
        if name not in INSTANCE_TYPES
    }


class _Described(InstanceType):
    """A type of our own, with the filters of moto's."""

    def __init__(self, described: dict[str, Any]) -> None:
        dict.__init__(self, described, name=described["InstanceType"])


class InstanceTypeCatalogue:
    """Types and offerings of one region. Every GPU type is offered in every zone until a zone is said to lack it."""

    def __init__(self, region: str) -> None:
        self._region = region
        added = {name: _Described(described) for name, described in _missing_from_moto().items()}
        self._types: dict[str, InstanceType] = {n: InstanceType(n) for n in INSTANCE_TYPES} | dict(added)
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
        """Of any maker. KeyError if the type is unknown."""
        return sum(int(gpu["Count"]) for gpu in self._types[instance_type].get("GpuInfo", {}).get("Gpus", []))

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
