"""Kubernetes' quantities, like "500m" and "16Gi", as numbers. Pure."""

from __future__ import annotations

import re
from collections.abc import Hashable
from functools import lru_cache

_QUANTITY = re.compile(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)([numkKMGTPE]?i?)")
_FACTORS = {"": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3}
_FACTORS |= {unit: 1e3**power for power, unit in enumerate("MGTPE", start=2)}
_FACTORS |= {f"{unit}i": 1024.0**power for power, unit in enumerate("KMGTPE", start=1)}


@lru_cache(maxsize=1024)  # a thousand waiting pods check the same nodes
def amount(quantity: Hashable) -> float:
    """Return a Kubernetes quantity ("500m", "16Gi", 2) as a number.

    Parsed by hand, since the client's own parser imports the whole client, which blocks a triggerer for a second.

    Raises:
        ValueError: It is not a quantity.
    """
    match = _QUANTITY.fullmatch(str(quantity).strip())
    if match is None or match[2] not in _FACTORS:
        raise ValueError(f"{quantity!r} is not a Kubernetes quantity")
    return float(match[1]) * _FACTORS[match[2]]
