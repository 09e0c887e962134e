"""EksGpuPool: what it refuses, how it names its groups, and that it survives its own JSON."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.clouds.aws import machine_types
from airflow_gpu_provider.clouds.pool_kinds import deserialize_pool
from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.pools import Taint

ZONES = ("us-west-2a", "us-west-2b", "us-west-2c")


def pool(**fields: Any) -> EksGpuPool:
    defaults: dict[str, Any] = {
        "name": "train-gpu",
        "cluster_name": "k8s-ml",
        "region": "us-west-2",
        "instance_types": ["g6.xlarge"],
        "max_nodes": 4,
    }
    return EksGpuPool(**{**defaults, **fields})


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"name": "Train_GPU"}, "DNS label"),
        ({"name": "x" * 41}, "at most 40"),
        ({"max_nodes": 0}, "max_nodes=0"),
        ({"max_nodes": "three"}, "not a whole number"),
        ({"max_nodes": True}, "not a whole number"),
        ({"min_nodes": -1}, "min_nodes=-1"),
        ({"min_nodes": 5}, "more than max_nodes"),
        ({"max_runtime": timedelta(0)}, "more than zero"),
        ({"instance_types": []}, "at least one machine type with GPUs"),
        ({"instance_types": ["g6.xlrage"]}, "Did you mean g6.xlarge?"),
        ({"instance_types": ["m5.large"]}, "not an EC2 instance type with GPUs"),
        ({"instance_types": ["g6.xlarge", "g6.xlarge"]}, "one twice"),
        ({"capacity_types": ["SPOT", "SPOT"]}, "ON_DEMAND, SPOT"),
        ({"capacity_types": ["CAPACITY_BLOCK"]}, "Name it in reservations"),
        ({"capacity_types": ["RESERVED"]}, "reservations names none"),
        ({"reservations": ["cr-0a1b2c3d"]}, 'needs "RESERVED" in capacity_types'),
        ({"reservations": "my-block", "capacity_types": ["RESERVED"]}, "my-block is no Capacity Reservation's id"),
        ({"reservations": ["cr-0a1b2c3d"] * 2, "capacity_types": ["RESERVED"]}, "names one twice"),
        (
            {
                "reservations": "arn:aws:ec2:us-west-2:123456789012:capacity-reservation/cr-0",
                "capacity_types": "RESERVED",
            },
            "is no Capacity Reservation's id",
        ),
        ({"reservations": [None], "capacity_types": ["RESERVED"]}, "reservations=(None,) must be a list of strings"),
        ({"reservations": 5}, "reservations=5 must be a list of strings"),
        ({"capacity_types": None}, "or some of them, in order"),
        ({"zones": [1]}, "zones=(1,) must be a list of strings"),
        (
            {"reservations": ["cr-0a1b2c3d"], "capacity_types": "RESERVED", "launch_template": "gpu"},
            "exclude each other",
        ),
        ({"reservations": ["cr-0a1b2c3d"], "capacity_types": "RESERVED", "scaling": "autoscaler"}, 'scaling="direct"'),
        (
            {"name": "x" * 33, "reservations": ["cr-0a1b2c3d4e5f67890"], "capacity_types": "RESERVED"},
            "longer than EKS allows",
        ),
        ({"region": "us-west"}, "AWS region"),
        ({"zones": ["eu-west-1a"]}, "not in region us-west-2"),
        ({"ami_type": "AL2023_x86_64_STANDARD"}, "AL2023_x86_64_NVIDIA"),
        ({"ami_type": "CUSTOM"}, "needs a launch_template"),
        ({"launch_template": "lt-1", "disk": {"size": 50}}, "exclude each other"),
        ({"instance_types": ["p2.xlarge"]}, "470 was the last"),
        ({"instance_types": ["g2.2xlarge"]}, "Kepler GPUs"),
        ({"instance_types": ["g4ad.xlarge"]}, "AMD's, not NVIDIA's"),
        ({"instance_types": ["g5g.xlarge"]}, "arm64 processors, and ami_type AL2023_x86_64_NVIDIA is for amd64"),
        ({"instance_types": ["p6e-gb200.36xlarge"]}, "has arm64 processors, and ami_type AL2023_x86_64_NVIDIA"),
        ({"ami_type": "AL2023_ARM_64_NVIDIA"}, "Choose one of AL2023_x86_64_NVIDIA, BOTTLEROCKET_x86_64_NVIDIA"),
        ({"node_labels": {"kubernetes.io/role": "gpu"}}, "EKS rejects kubernetes.io/role"),
        ({"node_labels": {"eks.amazonaws.com/team": "ml"}}, "EKS rejects eks.amazonaws.com/team"),
        ({"node_labels": {"node-role.kubernetes.io/gpu": "true"}}, "the node would never join"),
        ({"node_labels": {"role": ""}}, "EKS accepts no label without a value: role"),
        ({"taints": ["nvidia.com/gpu"]}, "not a taint"),
        ({"taints": ["nvidia.com/gpu=true:Never"]}, "not a taint"),
        ({"node_labels": {"bad key!": "x"}}, "valid Kubernetes labels"),
        ({"node_labels": {"airflow-gpu-provider/pool": "x"}}, "the package sets it"),
        ({"node_labels": {"role": 1}}, "valid Kubernetes labels"),
        ({"tags": {"team": object()}}, "holds a object"),
        ({"scaling": "by hand"}, '"direct" or "autoscaler"'),
        ({"autoscaling_options": {"scaledownunneededtime": "5m"}}, 'needs scaling="autoscaler"'),
        ({"scaling": "autoscaler", "autoscaling_options": {"scaledowntime": "5m"}}, "scaledownunneededtime"),
        ({"scaling": "autoscaler", "taints": ["gpu:NoSchedule"]}, "drops taints without a value"),
        ({"scaling": "autoscaler", "taints": ["gpu=a:NoSchedule", "gpu=a:NoExecute"]}, "one taint with the key gpu"),
        ({"scaling": "autoscaler", "instance_types": ["g99.xlarge"]}, "k8s.amazonaws.com/accelerator"),
        (
            {"name": "x" * 40, "instance_types": ["p6-b200.48xlarge"], "capacity_types": ["SPOT"]},
            "longer than EKS allows",
        ),
        ({"launch_template": "gpu:latest"}, r"launch_template='gpu:latest' must be"),
        *(({"disk": {"size": size}}, "must be between 1 and 65536 GiB") for size in (-5, 0, 70_000)),
        ({"launch_template": "gpu:"}, r"launch_template='gpu:' must be"),
        ({"price_per_hour": -1}, "price_per_hour=-1 must be"),
        ({"price_per_hour": {"SPOT": -0.1}}, "price_per_hour"),
    ],
)
def test_refuses_what_cannot_work_and_says_why(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(PoolSpecError) as caught:
        pool(**fields)
    assert says in str(caught.value)
    assert not caught.value.retryable


@pytest.mark.parametrize(
    "fields",
    [
        {"instance_types": ["g5g.xlarge"], "ami_type": "AL2023_ARM_64_NVIDIA"},
        {"ami_type": "BOTTLEROCKET_x86_64_NVIDIA_FIPS"},
        {"instance_types": ["p2.xlarge", "g5g.xlarge"], "ami_type": "CUSTOM", "launch_template": "lt-1"},
        {
            "node_labels": {
                "node.kubernetes.io/role": "gpu",
                "kubelet.kubernetes.io/x": "1",
                "my.node.kubernetes.io/y": "2",
            }
        },
        {"node_labels": {"k8s.amazonaws.com/accelerator": "nvidia-l4", "example.com/role": "gpu"}},
    ],
)
def test_takes_what_eks_and_its_nodes_take(fields: dict[str, Any]) -> None:
    assert pool(**fields)


def test_none_is_a_list_that_was_left_out() -> None:
    assert pool(reservations=None, zones=None, subnets=None, taints=None) == pool()


def test_the_accelerator_label_is_the_catalogue_s_or_the_spec_s() -> None:
    assert pool(scaling="autoscaler").accelerator_of("g6.xlarge") == "nvidia-l4"
    newer = pool(
        scaling="autoscaler", instance_types=["g99.xlarge"], node_labels={"k8s.amazonaws.com/accelerator": "nvidia-x1"}
    )
    assert newer.accelerator_of("g99.xlarge") == "nvidia-x1"
    assert pool().accelerator_of("g99.xlarge") is None


def test_candidates_go_through_zones_then_types_then_markets() -> None:
    spec = pool(instance_types=["g6.xlarge", "g5.xlarge"], capacity_types=["spot", "on-demand"])
    tried = [str(candidate) for candidate in spec.candidates(ZONES[:2])]
    assert tried == [
        "g6.xlarge spot in us-west-2a",
        "g6.xlarge spot in us-west-2b",
        "g5.xlarge spot in us-west-2a",
        "g5.xlarge spot in us-west-2b",
        "g6.xlarge on-demand in us-west-2a",
        "g6.xlarge on-demand in us-west-2b",
        "g5.xlarge on-demand in us-west-2a",
        "g5.xlarge on-demand in us-west-2b",
    ]


def test_group_names_stay_the_same_when_candidates_are_added() -> None:
    one = {candidate.group for candidate in pool().candidates(ZONES)}
    more = {
        candidate.group
        for candidate in pool(
            instance_types=["g6.xlarge", "g5.xlarge"], capacity_types=["ON_DEMAND", "SPOT"]
        ).candidates(ZONES)
    }
    assert one <= more
    assert "train-gpu-a-g6-xlarge" in one


@pytest.mark.parametrize(
    ("types", "gpus", "nodes"),
    [(["g6.xlarge"], 1, 1), (["g6.xlarge"], 3, 3), (["g6.12xlarge"], 5, 2), (["g6.12xlarge", "g6.xlarge"], 4, 4)],
)
def test_nodes_for_counts_on_the_smallest_type(types: list[str], gpus: int, nodes: int) -> None:
    assert pool(instance_types=types).nodes_for(gpus=gpus, nodes=None) == nodes


@given(gpus=st.integers(1, 64), per_node=st.sampled_from(["g6.xlarge", "g6.12xlarge", "p5.48xlarge"]))
def test_nodes_for_is_the_least_that_is_enough(gpus: int, per_node: str) -> None:
    spec = pool(instance_types=[per_node], max_nodes=64)
    each = spec.gpus_per_node
    assert each is not None
    nodes = spec.nodes_for(gpus=gpus, nodes=None)
    assert (nodes - 1) * each < gpus <= nodes * each


@pytest.mark.parametrize("wanted", [{"gpus": 5, "nodes": None}, {"gpus": None, "nodes": 5}, {"gpus": 1, "nodes": 1}])
def test_nodes_for_refuses_more_than_the_pool_can_have(wanted: dict[str, int | None]) -> None:
    with pytest.raises(PoolSpecError):
        pool().nodes_for(**wanted)


def test_a_type_newer_than_the_catalogue_needs_nodes() -> None:
    spec = pool(instance_types=["g9.xlarge"])
    assert spec.gpus_per_node is None
    assert spec.nodes_for(gpus=None, nodes=2) == 2
    with pytest.raises(PoolSpecError, match="Give nodes="):
        spec.nodes_for(gpus=1, nodes=None)


@given(
    max_nodes=st.integers(1, 1000),
    hours=st.integers(1, 48),
    types=st.lists(st.sampled_from(machine_types.instance_types()), min_size=1, max_size=3, unique=True),
    markets=st.permutations(["ON_DEMAND", "SPOT"]),
    labels=st.dictionaries(st.sampled_from(["role", "team", "example.com/x"]), st.sampled_from(["a", "b-1"])),
    price=st.one_of(st.none(), st.floats(0.1, 100), st.just({"SPOT": 0.3})),
)
def test_a_spec_survives_its_own_json(
    max_nodes: int, hours: int, types: list[str], markets: list[str], labels: dict[str, str], price: Any
) -> None:
    spec = pool(
        max_nodes=max_nodes,
        max_runtime=timedelta(hours=hours),
        instance_types=types,
        ami_type="CUSTOM",  # the one for all processors
        launch_template="lt-1",
        capacity_types=markets,
        node_labels=labels,
        price_per_hour=price,
    )
    again = deserialize_pool(json.loads(json.dumps(spec.serialize())))
    assert again == spec
    assert hash(again) == hash(spec)
    assert again.spec_hash == spec.spec_hash


def test_the_hash_covers_what_shapes_groups_and_nothing_else() -> None:
    spec = pool()
    assert pool(max_runtime=timedelta(hours=1), price_per_hour=2.0, currency="EUR").spec_hash == spec.spec_hash
    assert pool(node_labels={"role": "x"}).spec_hash != spec.spec_hash
    assert pool(max_nodes=5).spec_hash != spec.spec_hash


def test_unknown_kinds_and_fields_of_a_newer_release() -> None:
    record = pool().serialize()
    assert deserialize_pool({**record, "a_field_of_tomorrow": 1}) == pool()
    with pytest.raises(PoolSpecError, match="Unknown kind"):
        deserialize_pool({**record, "kind": "aks"})


def test_template_expressions_wait_for_rendering() -> None:
    spec = pool(
        region="{{ var.value.region }}",
        max_nodes="{{ params.nodes }}",
        zones="{{ params.zones }}",
        fast_start="{{ var.value.fast }}",
    )
    assert not spec.is_rendered

    class Task:
        def render_template(self, content: dict[str, Any], context: Any) -> dict[str, Any]:
            values = {"region": "eu-west-1", "max_nodes": "3", "zones": "eu-west-1b", "fast_start": "True"}
            return {key: values[key] for key in content}

    rendered = spec.resolve({"task": Task()})
    assert rendered.is_rendered
    assert (rendered.region, rendered.max_nodes, rendered.zones) == ("eu-west-1", 3, ("eu-west-1b",))
    assert rendered.fast_start is True


def test_taints_read_as_kubectl_writes_them() -> None:
    assert Taint.parse("nvidia.com/gpu=true:NoSchedule") == Taint(
        key="nvidia.com/gpu", value="true", effect="NoSchedule"
    )
    assert Taint.parse("dedicated:NoExecute").value == ""
    assert str(Taint.parse("a=b:NoSchedule")) == "a=b:NoSchedule"


def test_prices_are_in_dollars_unless_the_spec_says_otherwise() -> None:
    assert (pool().currency, pool(currency="EUR").currency) == ("USD", "EUR")
    assert deserialize_pool({key: value for key, value in pool().serialize().items() if key != "currency"}) == pool()


@pytest.mark.parametrize("currency", ["", "$", "usd", "Euro", "USD ", None])
def test_a_currency_is_given_by_its_code(currency: Any) -> None:
    with pytest.raises(PoolSpecError, match=r"currency=.* must be an ISO 4217 code: three capital letters, as USD"):
        pool(currency=currency)


def test_prices_are_known_or_unknown_never_guessed() -> None:
    assert pool(price_per_hour=0.8).price("SPOT") == 0.8
    spot = pool(capacity_types=["SPOT", "ON_DEMAND"], price_per_hour={"spot": 0.3})
    assert (spot.price("SPOT"), spot.price("ON_DEMAND")) == (0.3, None)
    assert pool().price("SPOT") is None


@pytest.mark.parametrize(
    ("fields", "what", "fix"),
    [
        ({"region": None}, "region=None must be an AWS region", "Correct"),
        ({"price_per_hour": "List"}, "price_per_hour='List' is not a number", 'or "list"'),
        ({"price_per_hour": {"spot": 0.3}}, "has a price of SPOT, and the pool's capacity_types are ON_DEMAND", "Give"),
        ({"max_runtime": 6}, "max_runtime=6 has no unit", "timedelta(hours=6)"),
    ],
)
def test_what_cannot_be_meant_is_refused(fields: dict[str, Any], what: str, fix: str) -> None:
    with pytest.raises(PoolSpecError) as refused:
        pool(**fields)
    assert what in refused.value.what
    assert fix in refused.value.fix


@pytest.mark.parametrize("prices", [{"CAPACITY_BLOCK": 0.0}, {"ON_DEMAND": 1.0}])
def test_reserved_machines_have_prices_of_several_markets(prices: dict[str, float]) -> None:
    reserved = pool(capacity_types=["RESERVED"], reservations=["cr-0123456789abcdef0"], price_per_hour=prices)
    assert reserved.price_per_hour == prices


def test_seconds_come_from_json_and_templates() -> None:
    assert EksGpuPool.deserialize({**pool().serialize(), "max_runtime": 60}).max_runtime == timedelta(minutes=1)
    assert pool(max_runtime="60").max_runtime == timedelta(minutes=1)


@pytest.mark.parametrize(
    ("region", "host"),
    [
        ("us-west-2", "us-west-2.console.aws.amazon.com"),
        ("us-gov-west-1", "us-gov-west-1.console.amazonaws-us-gov.com"),
        ("cn-north-1", "cn-north-1.console.amazonaws.cn"),
        ("eusc-de-east-1", "eusc-de-east-1.console.amazonaws-eusc.eu"),
    ],
)
def test_every_partition_has_regions_and_a_console_of_its_own(region: str, host: str) -> None:
    assert pool(region=region).console_url.startswith(f"https://{host}/eks/home?region={region}#/clusters/k8s-ml?")


@pytest.mark.parametrize("name", ["gr6f.4xlarge", "gr7.xlarge", "g99.xlarge", "p9.large"])
def test_gpu_families_newer_than_the_catalogue_are_left_to_eks(name: str) -> None:
    assert pool(instance_types=[name]).instance_types == (name,)


def test_g5g_metal_is_in_the_catalogue() -> None:
    """EC2's page of G5g: 2 T4G, 64 vCPUs, 128 GiB."""
    assert pool(instance_types=["g5g.metal"], ami_type="AL2023_ARM_64_NVIDIA").gpus_per_node == 2
