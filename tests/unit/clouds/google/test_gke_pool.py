"""GkeGpuPool: what it refuses, what it knows of machines, how it names node pools, and that it survives its JSON."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider import GkeGpuPool
from airflow_gpu_provider.clouds.google import machine_types
from airflow_gpu_provider.clouds.pool_kinds import deserialize_pool
from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.pools import Taint
from airflow_gpu_provider.pools.workload_placement import idle_gpus_warning, placement
from airflow_gpu_provider.training.place.pod_placement import check_gpus

ZONES = ("us-central1-a", "us-central1-b")
RESERVED = {
    "consume_reservation_type": "SPECIFIC_RESERVATION",
    "key": "compute.googleapis.com/reservation-name",
    "values": ["a4"],
}
FAST: dict[str, Any] = {
    "images": {"streaming": True, "secondary_boot_disks": ["projects/ml/global/images/train-cache"]},
    "placement": "compact",
}
FLEX_START: dict[str, Any] = {"flex_start": True, "scaling": "autoscaler"}


def pool(**fields: Any) -> GkeGpuPool:
    defaults: dict[str, Any] = {
        "name": "train-gpu",
        "project_id": "ml-project",
        "location": "us-central1",
        "cluster_name": "k8s-ml",
        "machine_types": ["g2-standard-4"],
        "max_nodes": 4,
    }
    return GkeGpuPool(**{**defaults, **fields})


def n1(**fields: Any) -> GkeGpuPool:
    accelerator = {"type": "nvidia-tesla-t4", **fields.pop("accelerator", {})}
    return pool(**{"machine_types": ["n1-standard-4"], "accelerator": accelerator, **fields})


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"project_id": "X"}, "project_id='X' must be the id of a Google Cloud project"),
        ({"location": "us-central"}, "a zone or a region"),
        ({"machine_types": []}, "at least one machine type with GPUs"),
        ({"machine_types": ["g2-standrad-4"]}, "Did you mean g2-standard-4?"),
        ({"machine_types": ["g2-standard-5"]}, "Did you mean g2-standard-"),
        ({"machine_types": ["e2-standard-4"]}, "has no GPUs, and none can be attached"),
        ({"machine_types": ["g6.xlarge"]}, "not a machine type of Compute Engine with GPUs"),
        ({"machine_types": ["g2-standard-4", "g2-standard-4"]}, "one twice"),
        ({"machine_types": ["n1-standard-4"]}, 'accelerator={"type": "nvidia-tesla-t4"}.'),
        ({"machine_types": ["a9-hugegpu-1g"]}, "not in the catalogue"),
        ({"machine_types": ["a9x-hugegpu-1g"]}, "Give type and count of its GPUs in accelerator"),
        (
            {"machine_types": ["g4-standard-48"], "accelerator": {"type": "nvidia-l4"}},
            "has nvidia-rtx-pro-6000, not nvidia-l4",
        ),
        (
            {"machine_types": ["a2-highgpu-1g"], "gpu_partition_size": "1g.20gb"},
            "Choose one of 1g.5gb, 2g.10gb",
        ),
        (
            {"machine_types": ["a2-highgpu-1g"], "gpu_partition_size": "1g.10gb"},
            "the A100 of a2-highgpu-1g has no such partition",
        ),
        ({"gpu_partition_size": "1g.5gb"}, "the L4 of g2-standard-4 has no such part"),
        ({"node_locations": ["us-central1-aia"]}, "not a zone of us-central1"),
        ({"accelerator": {"type": "T4"}}, "Did you mean nvidia-tesla-t4?"),
        ({"accelerator": {"type": "nvidia-tesla-t5"}}, "Did you mean nvidia-tesla-t4?"),
        ({"accelerator": {"type": "nvidia-tesla-t4"}}, "g2-standard-4 has nvidia-l4, not nvidia-tesla-t4"),
        ({"accelerator": {"count": 2}}, "g2-standard-4 has 1 GPUs, not 2"),
        ({"accelerator": {"count": 0}}, "at least 1"),
        ({"node_locations": ["us-east1-b"]}, "not a zone of us-central1"),
        ({"node_locations": ["us-central1"]}, "not a zone of us-central1"),
        ({"capacity_types": ["RESERVED"]}, "some of ON_DEMAND, SPOT"),
        ({"reservation_affinity": {"type": "specific"}}, "Give some of 'consume_reservation_type', 'key', 'values'."),
        ({"reservation_affinity": {"consume_reservation_type": "some"}}, "Give consume_reservation_type"),
        ({"reservation_affinity": {"consume_reservation_type": "specific-reservation"}}, "names no reservation"),
        (
            {"reservation_affinity": {"consume_reservation_type": "ANY_RESERVATION", "key": "x"}},
            "neither key nor values",
        ),
        ({"reservation_affinity": RESERVED, "capacity_types": ["SPOT"]}, "cannot use a reservation"),
        ({"shielded_instance_config": {"secure_boot": True}}, "Did you mean 'enable_secure_boot'?"),
        ({"shielded_instance_config": {"enable_secure_boot": 1}}, "must be True or False"),
        ({"flex_start": "yes"}, "True or False"),
        ({"flex_start": True}, 'Set scaling="autoscaler".'),
        ({**FLEX_START, "capacity_types": ["SPOT"]}, "flex-start machines are not spot"),
        ({**FLEX_START, "location_policy": "balanced"}, "Leave location_policy out."),
        ({**FLEX_START, "reservation_affinity": RESERVED}, "Leave one of flex_start and reservation_affinity out."),
        ({**FLEX_START, "max_run_duration": timedelta(days=8)}, "at most 7 days"),
        ({**FLEX_START, "min_nodes": 1}, "Leave min_nodes out."),
        ({**FLEX_START, "min_nodes": 1, "max_run_duration": timedelta(days=1)}, "Leave min_nodes out."),
        ({**FLEX_START, "machine_types": ["a3-edgegpu-8g"]}, "Take a3-highgpu-8g, or leave flex_start out."),
        ({"machine_types": ["a4x-highgpu-4g"], "accelerator": {"type": "nvidia-gb200"}}, "Take a4-highgpu-8g."),
        ({"machine_types": ["a4x-highgpu-4g"], "accelerator": {"type": "nvidia-gb200", "count": 4}}, "are Arm"),
        (
            {"machine_types": ["a3-megagpu-8g"], "placement": "compact", "max_nodes": 97},
            "at most 96 a3-megagpu-8g together. Lower max_nodes=97",
        ),
        ({"queued_provisioning": True}, "Set flex_start=True."),
        ({**FLEX_START, "queued_provisioning": "yes"}, "True or False"),
        ({**FLEX_START, "queued_provisioning": True, "placement": "compact"}, "Leave placement out."),
        (
            {
                **FLEX_START,
                "queued_provisioning": True,
                "gpu_sharing": {"strategy": "TIME_SHARING", "max_shared_clients": 2},
            },
            "Leave gpu_sharing out.",
        ),
        ({"exclude_upgrades": "yes"}, "True or False"),
        ({"images": {"streaming": "yes"}}, "True or False"),
        ({"endpoint": "private"}, 'must be "internal" or "dns", or left out'),
        ({"images": {"streaming": True}, "image_type": "UBUNTU_CONTAINERD"}, "streams no images"),
        ({"images": {"secondary_boot_disks": FAST["images"]["secondary_boot_disks"]}}, 'Add "streaming": True'),
        ({"images": {"streaming": True, "secondary_boot_disks": ["train-cache"]}}, "is no disk image"),
        (
            {"images": {"secondary_boot_disks": [None]}},
            "['secondary_boot_disks']=(None,) must be a list of strings",
        ),
        ({"placement": "close"}, 'It is "compact"'),
        (
            {"placement": "compact", "machine_types": ["n1-standard-4"], "accelerator": {"type": "nvidia-tesla-t4"}},
            "not for n1",
        ),
        ({"driver": "newest"}, "default, latest, disabled, daemonset"),
        ({"driver": "latest", "image_type": "ubuntu_containerd"}, "GKE installs it on COS alone"),
        ({"gpu_sharing": {"strategy": "MPS"}}, "max_shared_clients"),
        ({"gpu_sharing": {"strategy": "MPS", "max_shared_clients": 1}}, "must be 2 to 48"),
        ({"max_run_duration": timedelta(days=121)}, "more than 120 days"),
        ({"max_run_duration": timedelta(hours=1)}, "less than max_runtime"),
        ({"resource_labels": {"Team": "ml"}}, "lower-case letters"),
        ({"taints": ["nvidia.com/gpu=true:NoSchedule"]}, "contradicts GKE"),
        ({"manage": "some"}, "manage='some'"),
        ({"scaling": "by hand"}, '"direct" or "autoscaler"'),
        ({"location_policy": "nearest"}, "any, balanced"),
        ({"service_account": object()}, "holds a object"),
        ({"image_type": "COS_CONTAINERDD"}, "no node image for GPUs"),
        ({"image_type": "WINDOWS_LTSC_CONTAINERD"}, "no node image for GPUs"),
        ({"disk": {"type": "pd-fast"}}, "no type of boot disk"),
        (
            {"disk": {"type": "hyperdisk-throughput"}},
            "Give one of pd-standard, pd-balanced, pd-ssd, hyperdisk-balanced.",
        ),
        ({"disk": {"type": "pd-standard"}}, "Give pd-balanced or pd-ssd, or leave the type out"),
        (
            {"disk": {"type": "pd-balanced"}, "machine_types": ["a4-highgpu-8g"]},
            "a4-highgpu-8g cannot boot from pd-balanced",
        ),
        ({"disk": {"type": "pd-ssd"}, "machine_types": ["a3-ultragpu-8g"]}, "Give hyperdisk-balanced, or leave"),
        (
            {"disk": {"type": "pd-standard"}, "machine_types": ["a3-highgpu-8g"]},
            "Give pd-balanced or pd-ssd or hyperdisk-",
        ),
        (
            {"disk": {"type": "pd-balanced"}, "machine_types": ["g2-standard-4", "g4-standard-48"]},
            "g4-standard-48 cannot boot from pd-balanced. Leave the type out: GKE's default fits each",
        ),
        ({"disk": {"size": 5}}, "less than GKE allows"),
        ({"tags": ["GPU"]}, "no network tag"),
        ({"node_labels": {"cloud.google.com/gke-accelerator": "x"}}, "GKE rejects cloud.google.com/gke-accelerator"),
    ],
)
def test_refuses_what_cannot_work(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(PoolSpecError) as raised:
        pool(**fields)
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            {"machine_types": ["n1-standard-16"], "accelerator": {"type": "nvidia-tesla-k80"}},
            "Set accelerator['count'] to 2 or",
        ),
        ({"accelerator": {"count": 3}}, "Set accelerator['count'] to 1 or 2 or 4."),
        (
            {"accelerator": {"type": "nvidia-l4"}},
            "attached to n1-standard-4. Give it one of nvidia-tesla-k80",
        ),
        ({"machine_types": ["n1-standard-5"]}, "Did you mean n1-standard-"),
    ],
)
def test_refuses_what_cannot_be_attached(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(PoolSpecError) as raised:
        n1(**fields)
    assert says in str(raised.value)


def test_knows_what_machines_have() -> None:
    assert pool().accelerator_of("g2-standard-4") == ("nvidia-l4", 1)
    assert (pool().gpus_per_node, pool().gpu_products) == (1, ("L4",))
    assert (n1(accelerator={"count": 2}).gpus_per_node, n1().gpu_products) == (2, ("T4",))
    both = n1(machine_types=["g2-standard-24", "n1-standard-8"], accelerator={"count": 4})
    assert [both.accelerator_of(name) for name in both.machine_types] == [("nvidia-l4", 2), ("nvidia-tesla-t4", 4)]
    assert both.gpus_per_node == 2
    newer = pool(machine_types=["a9-hugegpu-1g"], accelerator={"type": "nvidia-b200", "count": 4})
    assert newer.gpus_per_node == 4


@pytest.mark.parametrize(
    ("machine_type", "accelerator", "count"),
    [
        ("g4-standard-48", "nvidia-rtx-pro-6000", 1),
        ("g2-standard-200", "nvidia-l4", 16),
        ("a5-highgpu-8g", "nvidia-rubin", 8),
        ("a5x-maxgpu-4g-metal", "nvidia-rubin", 4),
    ],
)
def test_takes_gpus_that_are_newer_than_the_catalogue(machine_type: str, accelerator: str, count: int) -> None:
    spec = pool(machine_types=[machine_type], accelerator={"type": accelerator, "count": count})
    assert spec.accelerator_of(machine_type) == (accelerator, count)
    assert spec.gpus_per_node == count


def test_ai_zones_are_zones() -> None:
    spec = pool(location="us-central1-ai1a", node_locations=["us-central1-ai1a", "us-central1-a"])
    assert spec.region == "us-central1"
    assert [c.group for c in spec.candidates(spec.node_locations)] == [
        "train-gpu-ai1a-g2-standard-4",
        "train-gpu-a-g2-standard-4",
    ]


def test_a_shared_or_partitioned_gpu_counts_as_often_as_pods_may_ask_for_it() -> None:
    assert pool(gpu_sharing={"strategy": "time-sharing", "max_shared_clients": 4}).gpus_per_node == 4
    shared = {"gpu_sharing": {"strategy": "time-sharing", "max_shared_clients": 2}}
    assert pool(machine_types=["a2-highgpu-2g"], gpu_partition_size="1g.5gb", **shared).gpus_per_node == 28
    newer = {"machine_types": ["a9-hugegpu-1g"], "accelerator": {"type": "nvidia-x", "count": 8}}
    assert pool(**newer, gpu_partition_size="1g.99gb").gpus_per_node is None


def test_a_pod_may_have_one_share_and_several_by_mps_of_a_gpu_alone() -> None:
    time_sharing = {"gpu_sharing": {"strategy": "time-sharing", "max_shared_clients": 4}}
    mps = {"gpu_sharing": {"strategy": "MPS", "max_shared_clients": 4}}
    several = {"machine_types": ["g2-standard-4", "g2-standard-24"]}
    assert pool(**several).most_gpus_of_a_pod is None
    assert pool(**time_sharing).most_gpus_of_a_pod == pool(**mps, **several).most_gpus_of_a_pod == 1
    assert pool(**mps).most_gpus_of_a_pod is None
    assert pool(**mps, machine_types=["a2-highgpu-1g"], gpu_partition_size="1g.5gb").most_gpus_of_a_pod == 1
    assert pool(**time_sharing).nodes_for(gpus=8, nodes=None) == 2
    check_gpus(pool(**mps), 4)
    for ask in (check_gpus, lambda shared, gpus: placement(shared, gpus=gpus)):
        with pytest.raises(PoolSpecError, match="gpus=2, but the GPUs of pool train-gpu are shared") as raised:
            ask(pool(**time_sharing), 2)
        assert raised.value.fix == "Ask for gpus=1, or use a pool without gpu_sharing."


@pytest.mark.parametrize(
    ("machine_type", "size", "parts"),
    [
        ("a2-highgpu-1g", "1g.5gb", 7),
        ("a2-ultragpu-1g", "1g.10gb", 7),
        ("a2-ultragpu-1g", "2g.20gb", 3),
        ("a3-highgpu-8g", "1g.10gb", 56),
        ("a3-highgpu-8g", "1g.20gb", 32),
        ("a3-highgpu-8g", "3g.40gb", 16),
        ("a3-megagpu-8g", "7g.80gb", 8),
        ("a3-ultragpu-8g", "1g.35gb", 32),
        ("a4-highgpu-8g", "1g.45gb", 32),
        ("g4-standard-48", "1g.24gb", 4),
    ],
)
def test_partitions_are_those_of_nvidias_table(machine_type: str, size: str, parts: int) -> None:
    spec = pool(machine_types=[machine_type], gpu_partition_size=size)
    assert spec.gpus_per_node == parts
    node = spec.node_sizes[machine_type]
    assert node is not None
    assert node.gpus == parts


@pytest.mark.parametrize("name", machine_types.gce_machine_types())
def test_takes_every_machine_type_of_the_catalogue_that_has_gpus(name: str) -> None:
    machine = machine_types.gce_machine_type(name)
    assert machine
    if machine.gpu:
        assert pool(machine_types=[name]).gpus_per_node == machine.gpus


def test_candidates_come_by_market_then_type_then_zone() -> None:
    spec = n1(machine_types=["n1-standard-4", "n1-standard-8"], capacity_types=["spot", "on-demand"])
    found = spec.candidates(ZONES)
    assert [candidate.group for candidate in found] == [
        "train-gpu-a-n1-standard-4-spot",
        "train-gpu-b-n1-standard-4-spot",
        "train-gpu-a-n1-standard-8-spot",
        "train-gpu-b-n1-standard-8-spot",
        "train-gpu-a-n1-standard-4",
        "train-gpu-b-n1-standard-4",
        "train-gpu-a-n1-standard-8",
        "train-gpu-b-n1-standard-8",
    ]
    assert str(found[0]) == "n1-standard-4 spot in us-central1-a"


def test_preemptible_is_a_word_for_spot() -> None:
    prices = {"preemptible": 0.3, "on-demand": 1}
    spelled = pool(capacity_types=["preemptible", "on_demand", "spot"], price_per_hour=prices)
    usual = pool(capacity_types=["SPOT", "ON_DEMAND"])
    assert spelled.candidates(ZONES) == usual.candidates(ZONES)
    assert spelled.spec_hash == usual.spec_hash
    assert spelled.price("SPOT") == 0.3


@given(st.from_regex(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", fullmatch=True))
def test_node_pools_have_names_that_gke_takes(name: str) -> None:
    candidates = pool(name=name, machine_types=["a2-megagpu-16g"], capacity_types=["SPOT"]).candidates(ZONES)
    names = [candidate.group for candidate in candidates]
    assert all(len(one) <= 40 and one.replace("-", "").isalnum() for one in names)
    assert len(set(names)) == len(ZONES)


def test_machines_live_a_little_longer_than_a_run() -> None:
    run = {"max_runtime": timedelta(hours=6)}
    assert pool(**run).node_lifetime == timedelta(hours=6, minutes=15)
    assert pool(**run, max_run_duration=timedelta(days=1)).node_lifetime == timedelta(days=1)
    assert pool(**run, min_nodes=1).node_lifetime is None
    assert pool(max_runtime=timedelta(days=120)).node_lifetime is None


def test_the_spec_hash_is_of_what_shapes_the_node_pools() -> None:
    assert pool().spec_hash == pool(price_per_hour=1.0, endpoint="internal", gcp_conn_id="other").spec_hash
    assert pool().spec_hash != pool(driver="latest").spec_hash
    assert pool().spec_hash != pool(max_runtime=timedelta(hours=1)).spec_hash


def test_gkes_own_taint_is_always_there() -> None:
    gpu = Taint(key="nvidia.com/gpu", value="present", effect="NoSchedule")
    assert pool().parsed_taints == (gpu,)
    assert pool(taints=()).parsed_taints == (gpu,)
    assert len(pool(taints=["team=ml:NoExecute"]).parsed_taints) == 2


def test_gkes_taint_of_queued_nodes_is_the_pools_too() -> None:
    queued = pool(**FLEX_START, queued_provisioning=True)
    assert {taint.key for taint in queued.parsed_taints} == {"nvidia.com/gpu", "cloud.google.com/gke-queued"}
    assert {"key": "cloud.google.com/gke-queued", "operator": "Equal", "value": "true", "effect": "NoSchedule"} in (
        placement(queued, gpus=1).tolerations
    )


def test_takes_reservations_flex_start_and_secure_boot() -> None:
    assert pool(reservation_affinity=RESERVED).is_reserved
    assert not pool(reservation_affinity={"consume_reservation_type": "any-reservation"}).is_reserved
    assert pool(**FLEX_START, max_runtime=timedelta(days=6)).flex_start
    assert pool(**FLEX_START, reservation_affinity={"consume_reservation_type": "NO_RESERVATION"}).flex_start
    assert pool(shielded_instance_config={"enable_secure_boot": True}) != pool()


def test_survives_its_own_json() -> None:
    spec = n1(
        node_locations=list(ZONES),
        capacity_types=["SPOT", "ON_DEMAND"],
        price_per_hour={"spot": 0.1, "on-demand": 0.3},
        gpu_sharing={"strategy": "MPS", "max_shared_clients": 2},
        max_run_duration=timedelta(days=2),
        impersonation_chain=["a@x.iam", "b@x.iam"],
        tags=["gpu"],
        reservation_affinity={"consume_reservation_type": "NO_RESERVATION"},
        shielded_instance_config={"enable_secure_boot": True},
        resource_labels={"team": "ml"},
        images={"streaming": True, "secondary_boot_disks": ["projects/ml/global/images/train-cache"]},
    )
    again = deserialize_pool(json.loads(json.dumps(spec.serialize())))
    assert again == spec
    assert hash(again) == hash(spec)


def test_is_rendered_before_it_is_checked() -> None:
    class Task:
        def render_template(self, content: Any, context: Any) -> Any:
            return json.loads(json.dumps(content).replace("{{ zone }}", "us-central1-a").replace("{{ n }}", "2"))

    spec = n1(location="{{ zone }}", accelerator={"count": "{{ n }}"}, node_locations=["{{ zone }}"])
    assert not spec.is_rendered
    rendered = spec.resolve({"task": Task()})
    assert (rendered.location, rendered.accelerator["count"], rendered.region) == ("us-central1-a", 2, "us-central1")
    assert rendered.node_locations == ("us-central1-a",)
    reserved = pool(reservation_affinity=RESERVED)
    assert deserialize_pool(json.loads(json.dumps(reserved.serialize()))) == reserved


@pytest.mark.parametrize("word", ["True", "true", "False", "false"])
def test_rendered_switches_are_read_as_words(word: str) -> None:
    class Task:
        def render_template(self, content: Any, context: Any) -> Any:
            return json.loads(json.dumps(content).replace("{{ var.value.on }}", word))

    on = "{{ var.value.on }}"
    spec = pool(
        **{**FLEX_START, "flex_start": on},
        queued_provisioning=on,
        images={"streaming": on},
        image_type="UBUNTU_CONTAINERD" if word.lower() == "false" else "COS_CONTAINERD",
        driver="default",
        exclude_upgrades=on,
        shielded_instance_config={"enable_secure_boot": on},
    )
    assert spec.provisioning_class == ""  # not known yet, so that no task is refused for it
    rendered = spec.resolve({"task": Task()})
    is_on = word.lower() == "true"
    assert {
        (each.flex_start, each.queued_provisioning, each.images["streaming"], each.exclude_upgrades)
        for each in (rendered, deserialize_pool(rendered.serialize()))
    } == {(is_on,) * 4}
    assert rendered.shielded_instance_config == {"enable_secure_boot": is_on}


def test_a_rendered_switch_that_is_no_word_for_true_or_false_is_refused() -> None:
    class Task:
        def render_template(self, content: Any, context: Any) -> Any:
            return dict.fromkeys(content, "on")

    with pytest.raises(PoolSpecError, match="flex_start='on' must be True or False"):
        pool(flex_start="{{ var.value.flex }}", scaling="autoscaler").resolve({"task": Task()})


def test_shares_that_a_pod_leaves_are_others() -> None:
    shared = pool(machine_types=["g2-standard-4"], gpu_sharing={"strategy": "MPS", "max_shared_clients": 4})
    assert idle_gpus_warning(shared, 2) == ""


def test_demand_for_what_kueue_queues_lasts_for_the_wait_and_the_run() -> None:
    day = timedelta(days=1)
    queued, direct = pool(**FLEX_START, queued_provisioning=True, max_runtime=day), pool(max_runtime=day)
    given = (None, timedelta(hours=1), 5 * day)
    assert [queued.demand_lasts(each) for each in given] == [2 * day, 2 * day, 6 * day]
    assert {direct.demand_lasts(each) for each in given} == {day}
