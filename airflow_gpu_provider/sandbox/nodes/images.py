"""Container images: which of the known ones a reference means, and what a node that pulls it reports."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from fnmatch import fnmatchcase

from airflow_gpu_provider.sandbox.nodes.spec import Image

_DOCKER_HUB = ("docker.io/library/", "docker.io/", "index.docker.io/library/", "index.docker.io/", "library/")


def familiar(reference: str) -> str:
    """The reference without Docker Hub's registry, and with a tag: ``python`` -> ``python:latest``."""
    name = _without_registry(reference.partition("@")[0])
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def full(reference: str) -> str:
    """The reference as containerd spells it, with registry and tag."""
    name = familiar(reference)
    first, slash, _ = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return name
    return f"docker.io/{name}" if slash else f"docker.io/library/{name}"


def find(reference: str, images: Sequence[Image]) -> Image | None:
    """The first known image whose pattern fits, None for an unknown one."""
    name = familiar(reference)
    for image in images:
        if fnmatchcase(name, _without_registry(image.pattern)):
            return image
    return None


def image_id(reference: str) -> str:
    """A stable stand-in for the digest that a registry would give."""
    name = full(reference)
    repository = name.rpartition(":")[0]
    return f"{repository}@sha256:{hashlib.sha256(name.encode()).hexdigest()}"


def not_found(reference: str) -> str:
    """What containerd says about an image that no registry has."""
    name = full(reference)
    return (
        f'rpc error: code = NotFound desc = failed to pull and unpack image "{name}": '
        f'failed to resolve reference "{name}": {name}: not found'
    )


def pull_policy(policy: str | None, reference: str) -> str:
    """The policy that applies: Always for :latest, IfNotPresent else, where the container names none."""
    if policy:
        return policy
    return "Always" if familiar(reference).endswith(":latest") else "IfNotPresent"


def _without_registry(reference: str) -> str:
    for prefix in _DOCKER_HUB:
        if reference.startswith(prefix):
            return reference[len(prefix) :]
    return reference
