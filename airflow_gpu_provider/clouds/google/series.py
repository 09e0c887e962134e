"""What a series of Google's machines takes: boot disks, nodes close together, flex-start. No I/O.

The rules are those by which GKE's own autoscaler makes node pools (GoogleCloudPlatform/cluster-autoscaler at 7d25050,
pkg/cloudprovider/gke/machinetypes: supportedBootDiskTypes, maxCompactPlacementNodes, dwsDisabled, systemArchitecture).
Of a series that is not known here, GKE judges.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_BALANCED = "hyperdisk-balanced"
_PERSISTENT = ("pd-standard", "pd-balanced", "pd-ssd")
_BOOT_DISKS = (*_PERSISTENT, _BALANCED)
"""What any series boots from. Other types of Hyperdisk are attached to machines."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """Machine types whose names begin alike.

    Attributes:
        boot_disks: What they boot from.
        most_compact: How many of them one placement policy takes at most; None for none at all.
    """

    begins: str
    boot_disks: tuple[str, ...]
    most_compact: int | None


_SERIES = (  # the longer beginnings first
    Series(begins="a2-", boot_disks=_PERSISTENT, most_compact=150),
    Series(begins="a3-ultragpu-", boot_disks=(_BALANCED,), most_compact=96),
    Series(begins="a3-", boot_disks=("pd-balanced", "pd-ssd", _BALANCED), most_compact=96),
    Series(begins="a4-", boot_disks=(_BALANCED,), most_compact=1500),
    Series(begins="g2-", boot_disks=("pd-balanced", "pd-ssd"), most_compact=150),
    Series(begins="g4-", boot_disks=(_BALANCED,), most_compact=1500),
    Series(begins="n1-", boot_disks=_PERSISTENT, most_compact=None),
)
_NO_FLEX_START = "a3-edgegpu-"
_ARM = "a4x-"


def series_of(machine_type: str) -> Series | None:
    return next((each for each in _SERIES if machine_type.startswith(each.begins)), None)


def boot_disk_problems(disk: str | None, machine_types: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield why not all machines boot from a type of disk."""
    if disk is None:
        return
    if disk not in _BOOT_DISKS:
        yield f"disk['type']={disk!r} is no type of boot disk", f"Give one of {', '.join(_BOOT_DISKS)}."
        return
    known = {name: found.boot_disks for name in machine_types if (found := series_of(name))}
    wrong = [name for name, disks in known.items() if disk not in disks]
    if wrong:
        fit = [each for each in _BOOT_DISKS if all(each in disks for disks in known.values())]
        hint = f"Give {' or '.join(fit)}, or leave the type out" if fit else "Leave the type out"
        yield f"{', '.join(wrong)} cannot boot from {disk}", f"{hint}: GKE's default fits each machine type."


def placement_problems(
    placement: str | None, machine_types: Iterable[str], max_nodes: int
) -> Iterator[tuple[str, str]]:
    """Yield why machines cannot stand as close together as a placement asks.

    Compute Engine, "Placement policies overview", has no N1.
    """
    if placement not in (None, "compact"):
        yield f"placement={placement!r}", 'It is "compact", or left out.'
    for name in () if placement is None else machine_types:
        found = series_of(name)
        if found is not None and found.most_compact is None:
            yield f'placement="compact" is not for {name}', "Leave placement out, or take a G2, A2, A3 or A4 type."
        elif found is not None and found.most_compact is not None and max_nodes > found.most_compact:
            most = f"at most {found.most_compact} {name} together"
            yield f'placement="compact" takes {most}', f"Lower max_nodes={max_nodes}, or leave placement out."


def machine_problems(machine_types: Iterable[str], *, flex_start: bool) -> Iterator[tuple[str, str]]:
    """Yield which machines would never run a pod, or never come.

    GKE taints Arm nodes (container v1, TaintConfig), and A4X needs an accelerator slice policy besides.
    """
    for name in machine_types:
        if name.startswith(_ARM):
            why = "its CPUs are Arm, which pods here do not tolerate, and it needs an accelerator slice policy"
            yield f"{name} is not supported: {why}", "Take a4-highgpu-8g."
        if flex_start and name.startswith(_NO_FLEX_START):
            yield f"{name} is not provided by flex-start", "Take a3-highgpu-8g, or leave flex_start out."
