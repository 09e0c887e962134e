"""Whether a pod would run on a node of which not everything is known."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_gpu_provider.addons.detection import NodePicture, runs_on
from airflow_gpu_provider.pools import Taint

GPU_TAINT = Taint(key="nvidia.com/gpu", value="true", effect="NoSchedule")
NODE = NodePicture(labels={"role": "train", "gpus": "4"}, taints=(GPU_TAINT,), is_open=lambda key: key == "zone")
ANY_GPU_TAINT = {"key": "nvidia.com/gpu", "operator": "Exists"}


def spec(*expressions: dict[str, Any], **more: Any) -> dict[str, Any]:
    return affine([list(expressions)], **more)


def affine(terms: list[list[dict[str, Any]]], **more: Any) -> dict[str, Any]:
    required = {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    return {"tolerations": [ANY_GPU_TAINT], "affinity": affinity, **more}


def one(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


@pytest.mark.parametrize(
    ("toleration", "runs"),
    [
        (None, False),
        ({"operator": "Exists"}, True),
        (ANY_GPU_TAINT, True),
        ({**ANY_GPU_TAINT, "effect": "NoSchedule"}, True),
        ({**ANY_GPU_TAINT, "effect": "NoExecute"}, False),
        ({"key": "nvidia.com/gpu", "operator": "Equal", "value": "true"}, True),
        ({"key": "nvidia.com/gpu", "value": "true"}, True),
        ({"key": "nvidia.com/gpu", "value": "present"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_tolerations(toleration: dict[str, Any] | None, runs: bool) -> None:
    assert runs_on({"tolerations": [toleration] if toleration else []}, NODE) is runs


def test_soft_taints_keep_nobody_away() -> None:
    soft = Taint(key="a", value="", effect="PreferNoSchedule")
    assert runs_on({}, NodePicture(labels={}, taints=(soft,), is_open=lambda key: False)) is True


@pytest.mark.parametrize(
    ("expression", "runs"),
    [
        (one("role", "In", "train", "serve"), True),
        (one("role", "In", "serve"), False),
        (one("role", "NotIn", "serve"), True),
        (one("role", "Exists"), True),
        (one("role", "DoesNotExist"), False),
        (one("absent", "Exists"), False),
        (one("absent", "NotIn", "x"), True),
        (one("absent", "DoesNotExist"), True),
        (one("gpus", "Gt", "3"), True),
        (one("gpus", "Lt", "3"), False),
        (one("role", "Gt", "3"), False),
        (one("zone", "In", "a"), None),
        (one("zone", "Exists"), None),
    ],
)
def test_expressions(expression: dict[str, Any], runs: bool | None) -> None:
    assert runs_on(spec(expression), NODE) is runs


def test_all_expressions_of_one_term_and_any_term() -> None:
    yes, no, unknown = one("role", "Exists"), one("absent", "Exists"), one("zone", "Exists")
    assert runs_on(affine([[yes, no]]), NODE) is False
    assert runs_on(affine([[yes, unknown]]), NODE) is None
    assert runs_on(affine([[no, unknown]]), NODE) is False
    assert runs_on(affine([[no], [yes]]), NODE) is True
    assert runs_on(affine([[no], [unknown]]), NODE) is None
    assert runs_on(affine([[unknown], [yes]]), NODE) is True
    assert runs_on(affine([[]]), NODE) is False


def test_node_selector_counts_too() -> None:
    assert runs_on(spec(one("role", "Exists"), nodeSelector={"role": "train"}), NODE) is True
    assert runs_on(spec(one("role", "Exists"), nodeSelector={"role": "serve"}), NODE) is False


def test_a_nodes_name_is_known_to_nobody() -> None:
    required = {"nodeSelectorTerms": [{"matchFields": [one("metadata.name", "In", "n1")]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    assert runs_on({"tolerations": [ANY_GPU_TAINT], "affinity": affinity}, NODE) is None
