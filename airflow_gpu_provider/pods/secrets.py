"""Which of a pod's own words are secret, told to somebody who may not keep secrets. No I/O.

A worker knows the secrets that it has rendered into a pod, and masks them in the log; the triggerer that streams the
pod's log does not know them, and what it is given lies in Airflow's database in the clear. So it is given the words as
Airflow shows them, secrets masked, and finds the secrets by comparing these with the pod that it watches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from airflow_gpu_provider.cluster.pod_state import Json

MASK = "***"


def masked_words(pod: Json, redact: Callable[[str], str]) -> dict[str, str]:
    """Return the words that hold a secret, masked, by their place in the pod.

    Args:
        pod: As JSON.
        redact: Returns a text with MASK in the place of each secret.
    """
    masked = {place: redact(text) for place, text in _words(pod)}
    return {place: masked[place] for place, text in _words(pod) if masked[place] != text}


def secrets_of(pod: Json, masked: Mapping[str, str]) -> set[str]:
    """Return the secrets in the pod, of which `masked` shows the places."""
    found: set[str] = set()
    for place, text in _words(pod):
        if place in masked:
            shape = "(.+?)".join(map(re.escape, masked[place].split(MASK)))
            match = re.fullmatch(shape, text, flags=re.DOTALL)
            found.update(match.groups() if match else ())
    return found


def _words(pod: Json) -> Iterator[tuple[str, str]]:
    """Yield the texts that a container is started with, and where each stands."""
    spec: Mapping[str, Any] = pod.get("spec") or {}
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        for variable in container.get("env") or ():
            if variable.get("value"):
                yield f"{container['name']}/env/{variable['name']}", variable["value"]
        for field in ("command", "args"):
            for index, text in enumerate(container.get(field) or ()):
                yield f"{container['name']}/{field}/{index}", text
