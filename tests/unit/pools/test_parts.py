"""Parts of a spec: what holds for every one of every pool; the rules of each are in the tests of its cloud."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_gpu_provider import EksGpuPool, EnsureGpuPoolOperator, GkeGpuPool
from airflow_gpu_provider.clouds.pool_kinds import deserialize_pool, pool_as_written
from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.pools.gpu_pool import GpuPool
from airflow_gpu_provider.pools.parts import forms_of

EKS: dict[str, Any] = {"cluster_name": "ml", "region": "us-west-2", "instance_types": ["g6.xlarge"]}
GKE: dict[str, Any] = {"cluster_name": "ml", "project_id": "my-project", "location": "us-central1"}
L4, T4 = {**GKE, "machine_types": ["g2-standard-8"]}, {**GKE, "machine_types": ["n1-standard-8"]}
RESERVATION = {"key": "compute.googleapis.com/reservation-name", "values": ["mine"]}

PARTS: list[tuple[type[GpuPool], dict[str, Any], str, dict[str, Any]]] = [
    (EksGpuPool, EKS, "disk", {"size": 200, "throughput": 600, "iops": 6000}),
    (GkeGpuPool, L4, "disk", {"size": 200, "type": "pd-ssd"}),
    (GkeGpuPool, T4, "accelerator", {"type": "nvidia-tesla-t4", "count": 2}),
    (GkeGpuPool, L4, "gpu_sharing", {"strategy": "MPS", "max_shared_clients": 4}),
    (GkeGpuPool, L4, "images", {"streaming": True, "secondary_boot_disks": ["projects/ml/global/images/cache"]}),
    (GkeGpuPool, L4, "reservation_affinity", {"consume_reservation_type": "SPECIFIC_RESERVATION", **RESERVATION}),
    (GkeGpuPool, L4, "shielded_instance_config", {"enable_secure_boot": True, "enable_integrity_monitoring": False}),
]
of_each = pytest.mark.parametrize(
    ("kind", "other", "name", "value"), PARTS, ids=[f"{kind.kind}-{name}" for kind, _, name, _ in PARTS]
)


def pool(kind: type[GpuPool], other: dict[str, Any], **part: Any) -> GpuPool:
    return kind(**{"name": "train", "max_nodes": 2, **other, **part})


def test_no_part_is_left_out_here() -> None:
    there = {(kind, name): set(forms_of(kind)[name]) for kind in (EksGpuPool, GkeGpuPool) for name in forms_of(kind)}
    assert {(kind, name): set(value) for kind, _, name, value in PARTS} == there


@of_each
def test_a_part_survives_json_and_shapes_the_groups(
    kind: type[GpuPool], other: dict[str, Any], name: str, value: dict[str, Any]
) -> None:
    spec = pool(kind, other, **{name: value})
    written = json.loads(json.dumps(spec.serialize()))
    assert written[name] == value
    assert deserialize_pool(written) == pool_as_written(written) == spec
    assert hash(deserialize_pool(written)) == hash(spec)
    if name != "accelerator":  # a pool of N1 machines has to have one
        assert spec.spec_hash != pool(kind, other).spec_hash
        assert pool(kind, other, **{name: {}}) == pool(kind, other, **{name: None}) == pool(kind, other)


@of_each
def test_an_unknown_key_is_refused_with_the_nearest_but_for_a_newer_release_s(
    kind: type[GpuPool], other: dict[str, Any], name: str, value: dict[str, Any]
) -> None:
    key = next(iter(value))
    wrong = {**value, f"{key}x": 1}
    with pytest.raises(PoolSpecError, match=f"{name} has no '{key}x'. Did you mean '{key}'?"):
        pool(kind, other, **{name: wrong})
    with pytest.raises(PoolSpecError, match="is a template"):
        pool(kind, other, **{name: {**value, "{{ key }}": 1}})
    written = {**pool(kind, other, **{name: value}).serialize(), name: wrong}
    with pytest.raises(PoolSpecError, match=f"Did you mean '{key}'?"):
        pool_as_written(written)
    assert deserialize_pool(written) == pool(kind, other, **{name: value})


@of_each
def test_a_template_in_a_part_is_rendered_and_then_checked(
    kind: type[GpuPool], other: dict[str, Any], name: str, value: dict[str, Any]
) -> None:
    class Task:
        """Renders as Airflow does: a text is what Jinja's templates give."""

        def render_template(self, content: Any, context: Any) -> Any:
            return json.loads(json.dumps(content).replace("{{ x }}", str(context["x"])))

    key = next(iter(value))
    spec = pool(kind, other, **{name: {**value, key: "{{ x }}"}})
    assert spec.to_render([name]) == [name]
    assert spec.resolve({"task": Task(), "x": value[key]}) == pool(kind, other, **{name: value})
    with pytest.raises(PoolSpecError, match="train"):
        spec.resolve({"task": Task(), "x": "no such thing"})


@of_each
def test_what_is_no_mapping_is_refused(
    kind: type[GpuPool], other: dict[str, Any], name: str, value: dict[str, Any]
) -> None:
    for wrong in (200, "large", True):
        with pytest.raises(PoolSpecError, match=f"{name}={wrong!r} must be a mapping"):
            pool(kind, other, **{name: wrong})
    with pytest.raises(PoolSpecError, match="Use plain values"):
        pool(kind, other, **{name: {next(iter(value)): object()}})


@of_each
def test_a_part_goes_through_partial_and_expand(
    kind: type[GpuPool], other: dict[str, Any], name: str, value: dict[str, Any]
) -> None:
    specs = [pool(kind, {**other, "name": each}, **{name: value}) for each in ("one", "two")]
    with DAG("mapped", schedule=None):
        mapped = EnsureGpuPoolOperator.partial(task_id="ensure", nodes=1).expand(gpu_pool=specs)
    assert mapped.expand_input.value["gpu_pool"] == specs  # type: ignore[union-attr, index]
