"""Whether a pod is larger than any node can be, and Kubernetes' quantities."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.utils.quantity import parse_quantity

from airflow_gpu_provider.accelerators import NodeSize
from airflow_gpu_provider.clouds.aws.machine_types import eks_node_size
from airflow_gpu_provider.clouds.google.machine_types import gke_node_size
from airflow_gpu_provider.cluster.model.node import Node
from airflow_gpu_provider.cluster.model.quantity import amount
from airflow_gpu_provider.errors import PodUnschedulable
from airflow_gpu_provider.training.place.fit import check_fits, requests_of, size_of, waits_for_other_pods

GIB = 2**30
SMALL = NodeSize(cpus=4, memory=16 * GIB, gpus=1)
WIDE = NodeSize(cpus=64, memory=8 * GIB, gpus=1)


def container(
    requests: dict[str, Any] | None = None, limits: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    return {"name": "base", "resources": {"requests": requests, "limits": limits}, **more}


def asked(*containers: dict[str, Any], first: tuple[dict[str, Any], ...] = (), **more: Any) -> NodeSize:
    return requests_of({"containers": [*containers], "initContainers": [*first], **more})


@given(
    number=st.one_of(st.integers(0, 10**6).map(str), st.floats(0, 10**4).map("{:.3f}".format)),
    unit=st.sampled_from(["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]),
)
def test_quantities_are_read_as_the_client_reads_them(number: str, unit: str) -> None:
    assert amount(number + unit) == pytest.approx(float(parse_quantity(number + unit)))


@pytest.mark.parametrize("quantity", ["", "much", "1 Gi", "mi", "ki", "1ki", "-1"])
def test_what_is_no_quantity(quantity: str) -> None:
    with pytest.raises(ValueError, match="not a Kubernetes quantity"):
        amount(quantity)


def test_exponents_are_quantities() -> None:
    assert amount("1e3") == amount("1k") == 1000


def test_containers_ask_together_and_init_containers_alone() -> None:
    containers = [container({"cpu": "500m", "memory": "1Gi"}, {"nvidia.com/gpu": 1}), container(None, {"cpu": 2})]
    assert asked(*containers) == NodeSize(cpus=2.5, memory=GIB, gpus=1)
    assert asked(*containers, first=(container({"memory": "3Gi"}),)) == NodeSize(cpus=2.5, memory=3 * GIB, gpus=1)
    assert asked({"name": "base"}) == NodeSize(cpus=0, memory=0, gpus=0)


@pytest.mark.parametrize("key", ["restartPolicy", "restart_policy"])
def test_native_sidecars_run_beside_the_others(key: str) -> None:
    sidecar, fetch = container({"cpu": 2}, **{key: "Always"}), container({"cpu": 4})
    training = container({"cpu": 3})
    assert asked(training, first=(sidecar,)).cpus == 5
    assert asked(training, first=(sidecar, sidecar)).cpus == 7
    assert asked(training, first=(fetch, sidecar)).cpus == 5  # it has ended when the sidecar starts
    assert asked(training, first=(sidecar, fetch)).cpus == 6  # it runs beside the sidecar before it


@pytest.mark.parametrize(
    ("resources", "size"),
    [
        ({"requests": {"cpu": 7}}, NodeSize(cpus=7, memory=GIB, gpus=1)),
        ({"requests": {"cpu": 1}}, NodeSize(cpus=1, memory=GIB, gpus=1)),
        ({"limits": {"cpu": 7, "memory": "9Gi"}}, NodeSize(cpus=7, memory=GIB, gpus=1)),
        (None, NodeSize(cpus=0, memory=GIB, gpus=1)),
    ],
)
def test_what_the_pod_asks_for_as_a_whole_counts_instead(resources: Any, size: NodeSize) -> None:
    assert asked(container({"memory": "1Gi", "nvidia.com/gpu": 1}), resources=resources) == size


def test_overhead_of_a_runtime_class_is_added() -> None:
    assert asked(container({"cpu": 1}), overhead={"cpu": "250m"}).cpus == 1.25


def test_a_request_counts_and_not_its_higher_limit() -> None:
    assert asked(container({"memory": "1Gi"}, {"memory": "9Gi"})).memory == GIB


def test_one_machine_has_to_have_all_of_it() -> None:
    sizes = {"g6.xlarge": SMALL, "wide": WIDE}
    check_fits(NodeSize(cpus=60, memory=GIB, gpus=1), sizes, pool="train-gpu")
    check_fits(NodeSize(cpus=2, memory=16 * GIB, gpus=1), sizes, pool="train-gpu")
    with pytest.raises(PodUnschedulable) as error:
        check_fits(NodeSize(cpus=60, memory=16 * GIB, gpus=1), sizes, pool="train-gpu")
    assert "asks for 60 CPUs and 16.0 GiB of memory, more than any machine of pool train-gpu has" in str(error.value)
    assert "g6.xlarge has 4 CPUs, 16.0 GiB of memory and 1 GPU; wide has 64 CPUs, 8.0 GiB" in str(error.value)


def test_only_what_is_too_much_is_named() -> None:
    with pytest.raises(PodUnschedulable, match="The pod asks for 2 GPUs, more than any"):
        check_fits(NodeSize(cpus=0, memory=0, gpus=2), {"g6.xlarge": SMALL}, pool="train-gpu")
    with pytest.raises(PodUnschedulable, match="The pod asks for 5 CPUs, more than any"):
        check_fits(NodeSize(cpus=5, memory=GIB, gpus=1), {"g6.xlarge": SMALL}, pool="train-gpu")


def test_a_size_that_is_not_known_may_be_large_enough() -> None:
    too_much = NodeSize(cpus=999, memory=GIB, gpus=1)
    check_fits(too_much, {"g6.xlarge": SMALL, "g99.xlarge": None}, pool="train-gpu")
    check_fits(too_much, {}, pool="train-gpu")
    check_fits(NodeSize(cpus=1, memory=GIB, gpus=9), {"n1": NodeSize(cpus=4, memory=8 * GIB)}, pool="train-gpu")


def test_many_machines_are_counted() -> None:
    with pytest.raises(PodUnschedulable, match="; and 3 more"):
        check_fits(NodeSize(cpus=999, memory=0), {f"n{index}": SMALL for index in range(8)}, pool="train-gpu")


def test_size_of_a_node_is_what_its_kubelet_says() -> None:
    raw: dict[str, Any] = {"metadata": {"name": "n1", "creationTimestamp": "2026-01-01T00:00:00Z"}, "status": {}}
    assert size_of(Node.parse(raw)) is None
    raw["status"]["allocatable"] = {"cpu": "3920m", "memory": "15Gi"}
    assert size_of(Node.parse(raw)) == NodeSize(cpus=3.92, memory=15 * GIB, gpus=None)
    raw["status"]["capacity"] = {"nvidia.com/gpu": "4"}  # of which one is unhealthy, for now
    raw["status"]["allocatable"]["nvidia.com/gpu"] = "3"
    assert size_of(Node.parse(raw)) == NodeSize(cpus=3.92, memory=15 * GIB, gpus=4)


def test_what_gke_keeps_is_what_its_documentation_says() -> None:
    size = gke_node_size("n1-standard-4", 1)
    assert size is not None
    assert size.cpus == pytest.approx(3.92)
    assert size.memory / GIB == pytest.approx(15 - 1 - 0.8 - 0.7 - 100 / 1024)
    assert gke_node_size("c99-standard-4", 1) is None


def test_what_eks_keeps_at_least() -> None:
    size = eks_node_size("g6.xlarge")
    assert size is not None
    assert size.cpus == pytest.approx(3.92)
    assert size.memory / GIB == pytest.approx(16 - 355 / 1024)
    assert eks_node_size("g99.xlarge") is None


OF_OTHER_PODS = [
    "Insufficient nvidia.com/gpu",
    "node(s) didn't match pod anti-affinity rules",
    "node(s) didn't satisfy existing pods anti-affinity rules",
    "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode",
    "node(s) had no available disk",
]
OF_ROOM = [
    "Insufficient cpu",
    "Insufficient memory",
    "Insufficient ephemeral-storage",
    "Insufficient vpc.amazonaws.com/efa",
    "Too many pods",
    "node(s) didn't have free ports for the requested pod ports",
    "node(s) exceed max volume count",
]
OF_THE_NODE = [
    "node(s) had untolerated taint {team: research}",
    "node(s) didn't match Pod's node affinity/selector",
    "node(s) had volume node affinity conflict",
    "node(s) didn't match pod affinity rules",
    "node(s) were unschedulable",
]


@given(
    reasons=st.lists(st.sampled_from([*OF_OTHER_PODS, *OF_ROOM, *OF_THE_NODE]), min_size=1, unique=True),
    is_empty=st.booleans(),
)
def test_a_pod_waits_for_others_where_their_end_would_make_room_for_it(reasons: list[str], is_empty: bool) -> None:
    listed = ", ".join(f"1 {reason}" for reason in reasons)
    message = f"0/{len(reasons)} nodes are available: {listed}. preemption: 1 No preemption victims found."
    waits = waits_for_other_pods(message, is_any_node_empty=is_empty)
    by_pods, by_room = (any(reason in some for reason in reasons) for some in (OF_OTHER_PODS, OF_ROOM))
    assert waits == (by_pods or (by_room and not is_empty))
