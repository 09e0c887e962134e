"""Container images: which of the known ones a reference means, and what a node that pulls it reports."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from gpu_sandbox.nodes.spec import Image

_COMPONENT = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_TAG, _DIGEST = r":[\w][\w.-]{0,127}", r"@[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}"
_VALID = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*(?:{_TAG})?(?:{_DIGEST})?", re.ASCII)
_DOCKER_HUB = ("docker.io/library/", "docker.io/", "index.docker.io/library/", "index.docker.io/", "library/")


def familiar(reference: str) -> str:
    """The reference without Docker Hub's registry, and with a tag: ``python`` -> ``python:latest``."""
    name = _without_registry(reference.partition("@")[0])
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def full(reference: str) -> str:
    """The reference as containerd spells it, with registry and tag."""
    registry, repository = _parts(familiar(reference))
    return f"{registry}/{repository}"


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


def invalid(reference: str) -> str | None:
    """What the kubelet says about a reference that is none; None for one that is."""
    _, repository = _parts(reference)
    name = repository.partition(":")[0]
    if name != name.lower():
        problem = f"invalid reference format: repository name ({name}) must be lowercase"
    elif not _VALID.fullmatch(repository):
        problem = "invalid reference format"
    else:
        return None
    return f'Failed to apply default image tag "{reference}": couldn\'t parse image name "{reference}": {problem}'


def pull_policy(policy: str | None, reference: str) -> str:
    """The policy that applies: Always for :latest, IfNotPresent else, where the container names none."""
    if policy:
        return policy
    return "Always" if familiar(reference).endswith(":latest") else "IfNotPresent"


def _parts(reference: str) -> tuple[str, str]:
    """Registry and repository, with what follows it, as Docker takes a reference apart."""
    first, slash, rest = reference.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return first, rest
    return "docker.io", reference if slash else f"library/{reference}"


def _without_registry(reference: str) -> str:
    for prefix in _DOCKER_HUB:
        if reference.startswith(prefix):
            return reference[len(prefix) :]
    return reference
