"""Kubernetes quantities: ``500m``, ``2Gi``, ``1e3``."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal
from typing import Any

_SUFFIXES = {"n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3")} | {
    "k": Decimal(10) ** 3,
    **{s: Decimal(10) ** (3 * i) for i, s in enumerate("MGTPE", 2)},
    **{f"{s}i": Decimal(1024) ** i for i, s in enumerate("KMGTPE", 1)},
}


def parse(quantity: str | int | float) -> Decimal:
    """The quantity in its base unit (cores, bytes, pieces). Raises ValueError for what is not a quantity."""
    text = str(quantity).strip()
    for length in (2, 1):
        factor = _SUFFIXES.get(text[-length:])
        if factor is not None:
            return _number(text[:-length], text) * factor
    return _number(text, text)


def whole(quantity: str | int | float) -> int:
    """The quantity rounded up to whole base units."""
    return int(parse(quantity).to_integral_value(ROUND_CEILING))


def divided(quantity: str | int | float, divisor: str | int | float) -> int:
    """quantity / divisor, rounded up, as resourceFieldRef wants it; a divisor of 0 means 1."""
    return int((parse(quantity) / (parse(divisor) or Decimal(1))).to_integral_value(ROUND_CEILING))


def requests(pod: Mapping[str, Any]) -> dict[str, Decimal]:
    """What a pod asks of its node: the larger of all containers together and each init container alone."""
    spec = pod["spec"]
    together: dict[str, Decimal] = {}
    alone: dict[str, Decimal] = {}
    for container in spec["containers"]:
        _add(together, _container_requests(container))
    sidecars: dict[str, Decimal] = {}
    for container in spec.get("initContainers") or ():
        asked = _container_requests(container)
        if container.get("restartPolicy") == "Always":
            _add(sidecars, asked)
            _add(together, asked)
        else:
            with_sidecars = dict(sidecars)
            _add(with_sidecars, asked)
            alone = {k: max(alone.get(k, Decimal(0)), v) for k, v in {**alone, **with_sidecars}.items()}
    return {name: max(together.get(name, Decimal(0)), alone.get(name, Decimal(0))) for name in together | alone}


def _container_requests(container: Mapping[str, Any]) -> dict[str, Decimal]:
    resources = container.get("resources") or {}
    merged = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: parse(value) for name, value in merged.items()}


def _add(total: dict[str, Decimal], more: Mapping[str, Decimal]) -> None:
    for name, value in more.items():
        total[name] = total.get(name, Decimal(0)) + value


def _number(text: str, whole_text: str) -> Decimal:
    try:
        return Decimal(text)
    except ArithmeticError:
        raise ValueError(f"{whole_text!r} is not a Kubernetes quantity") from None
