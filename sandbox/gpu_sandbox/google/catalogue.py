"""What each zone offers: machine types and accelerators, in a project's region."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_sandbox.google.machine_types import ACCELERATORS, MACHINE_TYPES

# Zones of us-central1 that have not everything; as "GPU regions and zones" listed them, retired GPUs included.
_NOT_OFFERED: dict[str, frozenset[str]] = {
    "us-central1-a": frozenset({"nvidia-tesla-p100", "nvidia-b200"}),
    "us-central1-b": frozenset({"nvidia-tesla-k80", "nvidia-tesla-p4", "nvidia-tesla-p100", "nvidia-a100-80gb"}),
    "us-central1-c": frozenset({"nvidia-b200", "nvidia-h200-141gb"}),
    "us-central1-f": frozenset({"nvidia-l4", "nvidia-tesla-k80", "nvidia-tesla-p4", "nvidia-a100-80gb", "nvidia-b200"}),
}


class Catalogue:
    """The zones of one region, and what is offered in each. Machine types with GPUs are where their GPUs are."""

    def __init__(self, *, region: str, zones: Sequence[str]) -> None:
        self.region = region
        self.zones = tuple(zones)
        self._missing: dict[str, set[str]] = {zone: set(_NOT_OFFERED.get(zone, ())) for zone in zones}

    def set_offered(self, name: str, zone: str, *, offered: bool) -> None:
        """Say whether a zone has a machine type or an accelerator type. ValueError if either is unknown."""
        if zone not in self._missing or not (name in ACCELERATORS or name in MACHINE_TYPES):
            raise ValueError(f"no zone {zone!r} in {self.region}, or no machine or accelerator type {name!r}")
        if offered:
            self._missing[zone].discard(name)
        else:
            self._missing[zone].add(name)

    def has_accelerator(self, accelerator: str, zone: str) -> bool:
        return accelerator in ACCELERATORS and accelerator not in self._missing[zone]

    def has_machine_type(self, name: str, zone: str) -> bool:
        machine = MACHINE_TYPES.get(name)
        if machine is None or name in self._missing[zone]:
            return False
        return machine.accelerator is None or self.has_accelerator(machine.accelerator.name, zone)

    def accelerators_in(self, zone: str) -> list[str]:
        return [name for name in ACCELERATORS if self.has_accelerator(name, zone)]

    def machine_types_in(self, zone: str) -> list[str]:
        return [name for name in MACHINE_TYPES if self.has_machine_type(name, zone)]
