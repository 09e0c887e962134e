"""Image references."""

from __future__ import annotations

import pytest

from gpu_sandbox.nodes.images import familiar, find, full, image_id, invalid, not_found, pull_policy
from gpu_sandbox.nodes.spec import Image, NodeSpec, Taint

KNOWN = (Image(pattern="python:*"), Image(pattern="docker.io/library/busybox*"), Image(pattern="nvcr.io/nvidia/*:*"))


@pytest.mark.parametrize(
    ("reference", "short", "long"),
    [
        ("python", "python:latest", "docker.io/library/python:latest"),
        ("docker.io/library/python:3", "python:3", "docker.io/library/python:3"),
        ("cupy/cupy:13", "cupy/cupy:13", "docker.io/cupy/cupy:13"),
        ("nvcr.io/nvidia/x:1", "nvcr.io/nvidia/x:1", "nvcr.io/nvidia/x:1"),
        ("localhost:5000/x", "localhost:5000/x:latest", "localhost:5000/x:latest"),
        ("python:3@sha256:abc", "python:3", "docker.io/library/python:3"),
    ],
)
def test_spellings(reference: str, short: str, long: str) -> None:
    assert familiar(reference) == short
    assert full(reference) == long


@pytest.mark.parametrize(
    "reference", ["python", "docker.io/library/python:3.11", "library/busybox", "nvcr.io/nvidia/a:1"]
)
def test_known_images(reference: str) -> None:
    assert find(reference, KNOWN) is not None


@pytest.mark.parametrize("reference", ["pythonic:1", "nvcr.io/other/a:1", "quay.io/python:3"])
def test_unknown_images(reference: str) -> None:
    assert find(reference, KNOWN) is None
    assert full(reference) in not_found(reference)


@pytest.mark.parametrize(
    "reference",
    ["python", "a/b_c/d--e:V1.2", "localhost:5000/x", "nvcr.io/nvidia/x:1", "a:1@sha256:" + "0" * 64, "Registry.io/a"],
)
def test_valid_references(reference: str) -> None:
    assert invalid(reference) is None


@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        ("Not A Name", "invalid reference format: repository name (library/Not A Name) must be lowercase"),
        ("nvcr.io/Nvidia/x:1", "invalid reference format: repository name (Nvidia/x) must be lowercase"),
        ("a b", "invalid reference format"),
        ("a::b", "invalid reference format"),
        ("{{ image }}", "invalid reference format"),
    ],
)
def test_what_is_no_reference(reference: str, problem: str) -> None:
    text = f'Failed to apply default image tag "{reference}": couldn\'t parse image name "{reference}": {problem}'
    assert invalid(reference) == text


def test_ids_are_stable_and_different() -> None:
    assert image_id("python:3") == image_id("docker.io/library/python:3")
    assert image_id("python:3") != image_id("python:4")
    assert image_id("python:3").startswith("docker.io/library/python@sha256:")


def test_the_pull_policy_that_applies() -> None:
    assert pull_policy(None, "python") == "Always"
    assert pull_policy(None, "python:3") == "IfNotPresent"
    assert pull_policy("Never", "python") == "Never"


def test_specs_cross_a_pipe_unchanged() -> None:
    image = Image(pattern="a:*", env={"A": "b"}, default_command=("x",))
    assert Image.from_json(image.to_json()) == image
    spec = NodeSpec(name="n", labels={"a": "b"}, taints=(Taint(key="k", value="v"),), gpus=1)
    assert NodeSpec.from_json(spec.to_json()) == spec
