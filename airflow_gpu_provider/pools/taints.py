"""A node taint, in kubectl's notation and in that of the clouds' APIs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from airflow_gpu_provider.errors import PoolSpecError

CLOUD_EFFECTS = {"NoSchedule": "NO_SCHEDULE", "PreferNoSchedule": "PREFER_NO_SCHEDULE", "NoExecute": "NO_EXECUTE"}
"""The effects of taints, and how EKS and GKE spell them."""

_EFFECTS = {cloud: ours for ours, cloud in CLOUD_EFFECTS.items()}


@dataclass(frozen=True, kw_only=True)
class Taint:
    """A node taint; `str()` is kubectl's notation `key=value:Effect`."""

    key: str
    value: str
    effect: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `key=value:Effect` or `key:Effect`; raises PoolSpecError."""
        head, colon, effect = text.rpartition(":")
        key, _, value = head.partition("=")
        if not colon or effect not in CLOUD_EFFECTS or not key:
            known = tuple(CLOUD_EFFECTS)
            raise PoolSpecError(
                f"{text!r} is not a taint.", f"Write it as key=value:Effect, the effect one of {known}."
            )
        return cls(key=key, value=value, effect=effect)

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}"


def taints_from_cloud(taints: Iterable[Mapping[str, Any]]) -> Iterator[Taint]:
    """Yield taints that EKS or GKE describes; those with an effect that Kubernetes does not have are left out."""
    for taint in taints:
        if taint["effect"] in _EFFECTS:
            yield Taint(key=taint["key"], value=taint.get("value") or "", effect=_EFFECTS[taint["effect"]])
