"""Expansion of $(VAR), and references from a pod's spec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_sandbox.nodes.environment import ConfigError, Facts, build, expand, field_value

FACTS = Facts(pod_ip="127.1.0.1", host_ip="127.0.0.1", node_name="n", node_allocatable={"cpu": "4", "memory": "1Gi"})
POD = {
    "metadata": {"name": "p", "namespace": "ns", "uid": "u", "labels": {"a": "b", "c": 'd"e'}},
    "spec": {"serviceAccountName": "sa", "containers": [{"name": "c"}]},
}


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("$(A)", "x"),
        ("-$(A)-$(A)-", "-x-x-"),
        ("$(B)", "$(B)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$x"),
        ("$A ${A}", "$A ${A}"),
        ("$(A", "$(A"),
        ("ends in $", "ends in $"),
        ("$$", "$"),
    ],
)
def test_expansion(text: str, result: str) -> None:
    assert expand(text, {"A": "x"}) == result


@given(st.text(alphabet="ab c()", max_size=30))
def test_text_without_a_dollar_is_left_alone(text: str) -> None:
    assert expand(text, {"a": "x"}) == text


async def made(container: Mapping[str, Any], data: Mapping[str, Mapping[str, bytes]] | None = None) -> dict[str, str]:
    async def lookup(kind: str, name: str) -> Mapping[str, bytes] | None:
        return (data or {}).get(f"{kind}/{name}")

    return await build(container, POD, facts=FACTS, services={"SERVICE": "s"}, lookup=lookup)


async def test_later_sources_win_and_may_use_earlier_ones() -> None:
    container = {
        "envFrom": [{"configMapRef": {"name": "one"}}, {"secretRef": {"name": "two"}}],
        "env": [{"name": "A", "value": "own"}, {"name": "C", "value": "$(A) $(B) $(SERVICE)"}],
    }
    data = {"configmap/one": {"A": b"1", "B": b"1"}, "secret/two": {"B": b"2"}}
    assert await made(container, data) == {"SERVICE": "s", "A": "own", "B": "2", "C": "own 2 s"}


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ({"configMapKeyRef": {"name": "no", "key": "k"}}, 'configmap "no" not found'),
        ({"secretKeyRef": {"name": "two", "key": "k"}}, "couldn't find key k in Secret ns/two"),
        ({"fieldRef": {"fieldPath": "spec.nothing"}}, "unsupported fieldPath: spec.nothing"),
    ],
)
async def test_what_is_missing_is_named(source: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        await made({"env": [{"name": "A", "valueFrom": source}]}, {"secret/two": {}})
    assert str(caught.value) == text


async def test_limits_that_are_not_set_are_the_nodes() -> None:
    def resource(name: str, divisor: str) -> dict[str, Any]:
        return {"valueFrom": {"resourceFieldRef": {"resource": name, "divisor": divisor}}}

    env = [{"name": "CPU", **resource("limits.cpu", "1")}, {"name": "REQ", **resource("requests.memory", "1Mi")}]
    env.append({"name": "MEM", **resource("limits.memory", "1Mi")})
    assert await made({"env": env}) == {"SERVICE": "s", "CPU": "4", "REQ": "0", "MEM": "1024"}


def test_fields() -> None:
    assert field_value("metadata.labels['a']", POD, FACTS) == "b"
    assert field_value("metadata.labels", POD, FACTS) == 'a="b"\nc="d\\"e"\n'
    assert field_value("metadata.annotations['x']", POD, FACTS) == ""
    assert field_value("spec.nodeName", POD, FACTS) == "n"
