"""Marks which of a pod's texts are secret, for a process that must not store secrets. No I/O.

A worker knows the secrets that it has rendered into a pod, and masks them in the log; the triggerer that streams the
pod's log does not know them, and its arguments are stored in plain text in Airflow's database. So it gets the texts as
Airflow shows them, secrets masked, and finds the secrets by comparing them with the pod that it watches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from airflow_gpu_provider.cluster.pod_state import Json

MASK = "***"


def masked_words(pod: Json, redact: Callable[[str], str]) -> dict[str, str]:
    """Return the texts that contain a secret, masked, by their place in the pod.

    Args:
        pod: As JSON.
        redact: Returns a text with MASK in place of each secret.
    """
    masked = {place: redact(text) for place, text in _words(pod)}
    return {place: masked[place] for place, text in _words(pod) if masked[place] != text}


def secrets_of(pod: Json, masked: Mapping[str, str]) -> set[str]:
    """Return the pod's secrets, whose places `masked` shows."""
    found: set[str] = set()
    for place, text in _words(pod):
        if place in masked:
            shape = "(.+?)".join(map(re.escape, masked[place].split(MASK)))
            match = re.fullmatch(shape, text, flags=re.DOTALL)
            found.update(match.groups() if match else ())
    return found


def _words(pod: Json) -> Iterator[tuple[str, str]]:
    """Yield the texts that a container is started with, and the place of each."""
    spec: Mapping[str, Any] = pod.get("spec") or {}
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        for variable in container.get("env") or ():
            if variable.get("value"):
                yield f"{container['name']}/env/{variable['name']}", variable["value"]
        for field in ("command", "args"):
            for index, text in enumerate(container.get(field) or ()):
                yield f"{container['name']}/{field}/{index}", text
