"""What placing a pod adds to it, what of the user's it keeps, and what it refuses."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from kubernetes.client import ApiClient
from kubernetes.client import models as k8s

from airflow_gpu_provider import EksGpuPool, GkeGpuPool, KubernetesGpuPool
from airflow_gpu_provider.cluster.model.pod_state import DEADLINE_ANNOTATION
from airflow_gpu_provider.errors import PodUnschedulable, PoolSpecError
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.workload_placement import placement
from airflow_gpu_provider.training.place.pod_placement import Placement, check_gpus, check_resources, place
from tests.unit.clouds.google.test_gke_pool import pool as a_gke_pool


def a_pool(**changes: Any) -> EksGpuPool:
    fields: dict[str, Any] = {
        "name": "train-gpu",
        "cluster_name": "k8s-ml",
        "region": "us-west-2",
        "instance_types": ["g6.12xlarge"],
        "max_nodes": 1,
    }
    return EksGpuPool(**(fields | changes))


def a_pod(*others: k8s.V1Container, spec: dict[str, Any] | None = None, **base: Any) -> k8s.V1Pod:
    containers = [k8s.V1Container(name="base", image="train:1", **base), *others]
    return k8s.V1Pod(metadata=k8s.V1ObjectMeta(name="train"), spec=k8s.V1PodSpec(containers=containers, **(spec or {})))


def placed(pod: k8s.V1Pod, *, pool: GpuPool | None = None, **placement: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {"pool": pool or a_pool(), "gpus": 1, "base_container": "base"}
    result = place(pod, Placement(**(arguments | placement)))
    raw: dict[str, Any] = ApiClient().sanitize_for_serialization(result)
    return raw


def limits(**amounts: Any) -> k8s.V1ResourceRequirements:
    return k8s.V1ResourceRequirements(limits=amounts)


def test_pod_gets_what_it_needs() -> None:
    pod = placed(a_pod(), pool=a_pool(taints=["nvidia.com/gpu=true:NoSchedule", "team=vision:NoExecute"]), gpus=2)
    base = pod["spec"]["containers"][0]
    assert pod["spec"]["nodeSelector"] == {"airflow-gpu-provider/pool": "train-gpu"}
    assert pod["spec"]["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists"},
        {"key": "team", "operator": "Equal", "value": "vision", "effect": "NoExecute"},
    ]
    assert base["resources"] == {"limits": {"nvidia.com/gpu": "2"}, "requests": {"nvidia.com/gpu": "2"}}
    assert base["volumeMounts"] == [{"name": "gpu-pod-shm", "mountPath": "/dev/shm"}]
    assert pod["spec"]["volumes"] == [{"name": "gpu-pod-shm", "emptyDir": {"medium": "Memory"}}]
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["metadata"]["labels"] == {"airflow-gpu-provider/pool": "train-gpu"}
    assert pod["metadata"]["annotations"] == {
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
        "karpenter.sh/do-not-disrupt": "true",
        DEADLINE_ANNOTATION: "",
    }


def test_users_own_spec_stays() -> None:
    affinity = k8s.V1Affinity(pod_anti_affinity=k8s.V1PodAntiAffinity())
    pod = placed(
        a_pod(
            spec={
                "node_selector": {"disk": "nvme"},
                "affinity": affinity,
                "tolerations": [k8s.V1Toleration(key="mine", operator="Exists")],
                "volumes": [k8s.V1Volume(name="data")],
            },
            resources=limits(memory="8Gi", cpu="2"),
            volume_mounts=[k8s.V1VolumeMount(name="data", mount_path="/data")],
        )
    )
    base = pod["spec"]["containers"][0]
    assert pod["spec"]["nodeSelector"]["disk"] == "nvme"
    assert pod["spec"]["tolerations"][0] == {"key": "mine", "operator": "Exists"}
    assert "podAntiAffinity" in pod["spec"]["affinity"]
    assert base["resources"]["limits"] == {"memory": "8Gi", "cpu": "2", "nvidia.com/gpu": "1"}
    assert [mount["mountPath"] for mount in base["volumeMounts"]] == ["/data", "/dev/shm"]


def test_users_own_annotation_wins_over_the_protection() -> None:
    pod = a_pod()
    pod.metadata.annotations = {"karpenter.sh/do-not-disrupt": "false"}
    assert placed(pod)["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] == "false"


@pytest.mark.parametrize(
    ("labels", "mine", "protected"),
    [
        ({}, {}, True),
        ({"cloud.google.com/gke-spot": "true"}, {}, False),
        ({"cloud.google.com/compute-class": "training"}, {}, False),
        ({}, {"cloud.google.com/gke-spot": "true"}, False),
    ],
)
def test_autopilot_brings_no_spot_node_for_a_pod_that_may_not_be_evicted(
    labels: dict[str, str], mine: dict[str, str], protected: bool
) -> None:
    pool = KubernetesGpuPool(
        name="train-gpu",
        provisioner="autopilot",
        gpus_per_node=1,
        node_selector_labels={"cloud.google.com/gke-accelerator": "nvidia-l4", **labels},
    )
    annotations = placed(a_pod(spec={"node_selector": mine}), pool=pool)["metadata"]["annotations"]
    assert ("cluster-autoscaler.kubernetes.io/safe-to-evict" in annotations) == protected
    assert annotations["karpenter.sh/do-not-disrupt"] == "true"


def test_pod_that_is_given_is_not_changed() -> None:
    pod = a_pod(resources=limits(memory="1Gi"))
    before = copy.deepcopy(pod)
    placed(pod)
    assert pod == before


def test_only_the_base_container_gets_gpus() -> None:
    pod = placed(a_pod(k8s.V1Container(name="exporter")), gpus=4)
    assert "resources" not in pod["spec"]["containers"][1]


@pytest.mark.parametrize(
    ("size", "volumes"),
    [
        (None, [{"name": "gpu-pod-shm", "emptyDir": {"medium": "Memory"}}]),
        ("8Gi", [{"name": "gpu-pod-shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}]),
        ("0", None),
    ],
)
def test_shared_memory(size: str | None, volumes: Any) -> None:
    assert placed(a_pod(), shm_size=size)["spec"].get("volumes") == volumes


def test_users_own_shared_memory_stays() -> None:
    mounts = [k8s.V1VolumeMount(name="mine", mount_path="/dev/shm/")]
    pod = placed(a_pod(volume_mounts=mounts, spec={"volumes": [k8s.V1Volume(name="mine")]}))
    assert [volume["name"] for volume in pod["spec"]["volumes"]] == ["mine"]


@pytest.mark.parametrize(("own", "ours", "wins"), [(None, 60, 60), (30, 60, 30), (90, 60, 60), (30, None, 30)])
def test_shorter_deadline_wins(own: int | None, ours: int | None, wins: int) -> None:
    pod = placed(a_pod(spec={"active_deadline_seconds": own}), active_deadline_seconds=ours)
    assert pod["spec"]["activeDeadlineSeconds"] == wins
    assert pod["metadata"]["annotations"][DEADLINE_ANNOTATION] == str(wins)


def test_resources_may_be_given_as_a_dict() -> None:
    as_dict = {"limits": {"memory": "2Gi"}, "requests": {"cpu": "100m"}}
    assert placed(a_pod(resources=as_dict)) == placed(a_pod(resources=k8s.V1ResourceRequirements(**as_dict)))
    with pytest.raises(PoolSpecError, match="no resource requirements of Kubernetes"):
        placed(a_pod(resources={"memory": "2Gi"}))


# -- refused -----------------------------------------------------------------------------------------------------


def test_gpus_that_are_said_twice_must_agree() -> None:
    assert placed(a_pod(resources=_gpus("2")), gpus=2)
    with pytest.raises(PoolSpecError, match=r"nvidia\.com/gpu=4, but gpus=2"):
        placed(a_pod(resources=_gpus("4")), gpus=2)


@pytest.mark.parametrize("part", ["limits", "requests"])
@pytest.mark.parametrize("said", [None, "1000m", "1", 1, "1.0", "1e0"])
def test_gpus_may_be_said_in_any_form_that_kubernetes_takes_or_left_open(said: Any, part: str) -> None:
    resources = k8s.V1ResourceRequirements(**{part: {"nvidia.com/gpu": said, "memory": "2Gi", "cpu": None}})
    pool = a_pool()
    check_resources({"container_resources": resources}, pool)
    found = placed(a_pod(resources=resources), pool=pool)["spec"]["containers"][0]["resources"]
    assert found["limits"]["nvidia.com/gpu"] == found["requests"]["nvidia.com/gpu"] == "1"


@pytest.mark.parametrize("said", ["0", "500m", "2k", "one", ""])
def test_gpus_that_are_not_those_wanted_are_refused(said: str) -> None:
    with pytest.raises(PoolSpecError, match="Give gpus= alone"):
        placed(a_pod(resources=_gpus(said)))


@pytest.mark.parametrize("said", [None, 0, "0"])
def test_other_containers_may_say_that_they_have_none(said: Any) -> None:
    sidecar = k8s.V1Container(name="exporter", resources=limits(**{"nvidia.com/gpu": said}))
    assert placed(a_pod(sidecar))["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}


def test_other_containers_with_gpus_are_refused() -> None:
    with pytest.raises(PoolSpecError, match="Container exporter asks for 1"):
        placed(a_pod(k8s.V1Container(name="exporter", resources=_gpus("1"))))


def test_another_pool_in_the_node_selector_is_refused() -> None:
    with pytest.raises(PoolSpecError, match="another"):
        placed(a_pod(spec={"node_selector": {"airflow-gpu-provider/pool": "another"}}))


def test_missing_base_container_is_refused() -> None:
    with pytest.raises(PoolSpecError, match="no container 'main', only base"):
        placed(a_pod(), base_container="main")


def test_pods_that_share_a_gpu_by_mps_are_in_their_host_s_ipc_namespace_with_its_shm() -> None:
    shared = a_gke_pool(gpu_sharing={"strategy": "MPS", "max_shared_clients": 4})
    pod = placed(a_pod(), pool=shared)["spec"]
    assert pod["hostIPC"]
    assert "volumes" not in pod
    assert placement(shared, gpus=1).pod_spec["hostIPC"]
    with pytest.raises(PoolSpecError, match="shm_size='8Gi', but pods of pool train-gpu share GPUs by MPS"):
        placed(a_pod(), pool=shared, shm_size="8Gi")
    timed = a_gke_pool(gpu_sharing={"strategy": "TIME_SHARING", "max_shared_clients": 4})
    assert "hostIPC" not in {**placed(a_pod(), pool=timed)["spec"], **placement(timed, gpus=1).pod_spec}


def test_more_gpus_than_any_machine_has() -> None:
    check_gpus(a_pool(), 4)
    with pytest.raises(PoolSpecError, match="has 4"):
        check_gpus(a_pool(), 5)
    with pytest.raises(PoolSpecError, match="at least one"):
        check_gpus(a_pool(), 0)
    check_gpus(a_pool(instance_types=["g99.xlarge"]), 99)  # newer than the catalogue: nobody knows


@pytest.mark.parametrize(("resource", "amount"), [("memory", "200Gi"), ("cpu", "64")])
def test_more_than_any_machine_has(resource: str, amount: str) -> None:
    with pytest.raises(PodUnschedulable, match="more than any machine of pool train-gpu has"):
        placed(a_pod(resources=limits(**{resource: amount})))


OF_FOUR = a_pool(instance_types=["p4d.24xlarge"], network="efa").fabric_of(8)


def test_a_rank_asks_for_its_interfaces_and_huge_pages() -> None:
    (base,) = placed(a_pod(), fabric=OF_FOUR)["spec"]["containers"]
    for part in ("limits", "requests"):
        assert base["resources"][part]["vpc.amazonaws.com/efa"] == "4"
        assert base["resources"][part]["hugepages-2Mi"] == "5120Mi"
    assert base["resources"]["requests"]["cpu"] == "1", "Kubernetes takes huge pages beside CPU or memory only"
    assert {"name": "FI_PROVIDER", "value": "efa"} in base["env"]


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({"instance_types": ["p5.4xlarge"], "ami_type": "BOTTLEROCKET_x86_64_NVIDIA"}, "3520Mi"),
        ({"instance_types": ["p5.4xlarge", "p4d.24xlarge"], "ami_type": "BOTTLEROCKET_x86_64_NVIDIA"}, "3520Mi"),
        ({"instance_types": ["g6.8xlarge"], "ami_type": "BOTTLEROCKET_x86_64_NVIDIA"}, "5120Mi"),
        ({"instance_types": ["p5.4xlarge"]}, "5120Mi"),
    ],
)
def test_a_rank_asks_for_no_more_huge_pages_than_its_node_sets_aside(fields: dict[str, Any], asked: str) -> None:
    fabric = a_pool(**fields, network="efa").fabric_of(1)
    assert fabric
    assert fabric.resources["hugepages-2Mi"] == asked


def test_and_for_what_its_user_says_instead() -> None:
    own = limits(**{"memory": "8Gi", "vpc.amazonaws.com/efa": "1", "hugepages-2Mi": "1Gi"})
    env = [k8s.V1EnvVar(name="FI_PROVIDER", value="tcp")]
    (base,) = placed(a_pod(resources=own, env=env), fabric=OF_FOUR)["spec"]["containers"]
    assert base["resources"]["limits"] == {
        **own.limits,
        "nvidia.com/gpu": base["resources"]["limits"]["nvidia.com/gpu"],
    }
    assert base["resources"]["requests"]["vpc.amazonaws.com/efa"] == "1"
    assert "cpu" not in base["resources"]["requests"]
    assert [each["value"] for each in base["env"] if each["name"] == "FI_PROVIDER"] == ["tcp"]


def test_one_node_alone_needs_none() -> None:
    (base,) = placed(a_pod())["spec"]["containers"]
    assert set(base["resources"]["limits"]) == {"nvidia.com/gpu"}


def _gpus(number: str) -> k8s.V1ResourceRequirements:
    return k8s.V1ResourceRequirements(limits={"nvidia.com/gpu": number})


OF_TYPE = {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["g6.12xlarge"]}


def terms_of(pod: dict[str, Any]) -> Any:
    affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    return affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms")


ML = {"cluster_name": "ml", "max_nodes": 1}
EKS: dict[str, Any] = {**ML, "name": "p", "region": "us-west-2"}
GKE: dict[str, Any] = {**ML, "name": "p", "project_id": "ml-project", "location": "us-central1"}


@pytest.mark.parametrize(
    ("pool", "types"),
    [
        (EksGpuPool(**EKS, instance_types=["g6e.xlarge", "g6.xlarge"]), ["g6.xlarge", "g6e.xlarge"]),
        (EksGpuPool(**EKS, instance_types=["g6f.xlarge"]), ["g6f.xlarge"]),
        (EksGpuPool(**EKS, manage="scale", node_groups=["a"], instance_types=["g6.xlarge"]), ["g6.xlarge"]),
        (EksGpuPool(**EKS, manage="scale", node_groups=["a"]), None),
        (GkeGpuPool(**GKE, machine_types=["g2-standard-4"]), ["g2-standard-4"]),
        (
            GkeGpuPool(**GKE, machine_types=["n1-standard-8"], accelerator={"type": "nvidia-tesla-t4"}),
            ["n1-standard-8"],
        ),
        (KubernetesGpuPool(name="p", nodes=["n1"]), None),
        (KubernetesGpuPool(name="p", node_selector_labels={"a": "b"}, provisioner="karpenter"), None),
    ],
)
def test_a_pod_requires_the_types_that_the_pool_s_spec_names(pool: GpuPool, types: list[str] | None) -> None:
    found = terms_of(placed(a_pod(), pool=pool))
    required = {**OF_TYPE, "values": types}
    assert found == (None if types is None else [{"matchExpressions": [required]}])


def test_a_node_selector_of_another_type_contradicts_the_pool() -> None:
    with pytest.raises(PoolSpecError, match=r"instance-type=g6\.xlarge, and pool train-gpu has g6\.12xlarge"):
        placed(a_pod(spec={"node_selector": {OF_TYPE["key"]: "g6.xlarge"}}))


def test_nodes_to_avoid_are_added_to_each_of_the_users_terms() -> None:
    excluded = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n1", "n2"]}
    affinity = placed(a_pod(), avoid=(excluded,))["spec"]["affinity"]["nodeAffinity"]
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    assert affinity[required]["nodeSelectorTerms"] == [{"matchExpressions": [OF_TYPE, excluded]}]
    disk = [k8s.V1NodeSelectorRequirement(key="disk", operator="In", values=[size]) for size in ("big", "huge")]
    terms = [k8s.V1NodeSelectorTerm(match_expressions=[each]) for each in disk]
    users = k8s.V1NodeAffinity(**{_snake(required): k8s.V1NodeSelector(node_selector_terms=terms)})
    pod = placed(a_pod(spec={"affinity": k8s.V1Affinity(node_affinity=users)}), avoid=(excluded,))
    found = pod["spec"]["affinity"]["nodeAffinity"][required]["nodeSelectorTerms"]
    assert [[each["key"] for each in term["matchExpressions"]] for term in found] == [
        ["disk", OF_TYPE["key"], "kubernetes.io/hostname"],
        ["disk", OF_TYPE["key"], "kubernetes.io/hostname"],
    ]


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def test_variables_of_the_users_stay() -> None:
    pod = placed(a_pod(env=[k8s.V1EnvVar(name="A", value="mine")]), env={"A": "ours", "B": "2"})
    assert pod["spec"]["containers"][0]["env"] == [{"name": "A", "value": "mine"}, {"name": "B", "value": "2"}]
