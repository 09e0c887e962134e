"""Drop-in: what each argument of KubernetesPodOperator means to GpuPodOperator, all of them, one by one.

An argument that shapes the pod is given to both operators, and the pods that they build may differ only in what
placing a pod on GPUs adds. docs/drop-in.md lists the deliberate differences.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.amazon.aws.operators.eks import EksPodOperator
from airflow.providers.cncf.kubernetes.callbacks import KubernetesPodOperatorCallback
from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.providers.cncf.kubernetes.secret import Secret
from airflow.providers.google.cloud.operators.kubernetes_engine import GKEStartPodOperator
from airflow.sdk import DAG, TaskGroup
from kubernetes.client import ApiClient
from kubernetes.client import models as k8s

from airflow_gpu_provider import EksGpuPool, GkeGpuPool, GpuPodOperator, KubernetesGpuPool
from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.operators.pod_arguments import MovedArguments
from airflow_gpu_provider.pools import GpuPool
from tests.unit.training.test_pod_placement import a_pool

NEWEST = set(inspect.signature(KubernetesPodOperator.__init__).parameters) - {"self", "kwargs"}

TEMPLATE = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "from-template", "labels": {"team": "ml"}, "annotations": {"note": "kept"}},
    "spec": {
        "containers": [
            {"name": "base", "image": "template:1", "env": [{"name": "A", "value": "1"}]},
            {"name": "exporter", "image": "exporter:1"},
        ],
        "tolerations": [{"key": "team", "operator": "Exists"}],
        "nodeSelector": {"disk": "ssd"},
        "priorityClassName": "nightly",
    },
}
VOLUME = k8s.V1Volume(name="data", empty_dir=k8s.V1EmptyDirVolumeSource())
MOUNT = k8s.V1VolumeMount(name="data", mount_path="/data")

SHAPES_THE_POD: dict[str, Any] = {
    "namespace": "ml-jobs",
    "image": "train:2",
    "name": "train",
    "random_name_suffix": False,
    "cmds": ["python", "train.py"],
    "arguments": ["--epochs", "3"],
    "ports": [k8s.V1ContainerPort(name="http", container_port=80)],
    "volume_mounts": [MOUNT],
    "volumes": [VOLUME],
    "env_vars": {"A": "1"},
    "env_from": [k8s.V1EnvFromSource(config_map_ref=k8s.V1ConfigMapEnvSource(name="settings"))],
    "secrets": [Secret("volume", "/etc/secret", "token"), Secret("env", "TOKEN", "token", "key")],
    "labels": {"team": "ml"},
    "image_pull_policy": "Always",
    "annotations": {"note": "kept"},
    "container_resources": k8s.V1ResourceRequirements(limits={"memory": "2Gi"}, requests={"cpu": "1"}),
    "affinity": k8s.V1Affinity(
        pod_anti_affinity=k8s.V1PodAntiAffinity(
            required_during_scheduling_ignored_during_execution=[
                k8s.V1PodAffinityTerm(topology_key="kubernetes.io/hostname")
            ]
        )
    ),
    "runtime_class_name": "nvidia",
    "node_selector": {"disk": "ssd"},
    "image_pull_secrets": [k8s.V1LocalObjectReference("registry")],
    "service_account_name": "trainer",
    "automount_service_account_token": False,
    "hostnetwork": True,
    "host_aliases": [k8s.V1HostAlias(ip="10.0.0.1", hostnames=["store"])],
    "tolerations": [k8s.V1Toleration(key="team", operator="Exists")],
    "security_context": k8s.V1PodSecurityContext(run_as_user=1000),
    "container_security_context": k8s.V1SecurityContext(run_as_non_root=True),
    "dnspolicy": "ClusterFirst",
    "dns_config": k8s.V1PodDNSConfig(searches=["ml.svc"]),
    "hostname": "trainer",
    "subdomain": "ml",
    "schedulername": "batch",
    "full_pod_spec": k8s.V1Pod(
        metadata=k8s.V1ObjectMeta(name="full", labels={"team": "ml"}),
        spec=k8s.V1PodSpec(containers=[k8s.V1Container(name="base", image="full:1"), k8s.V1Container(name="side")]),
    ),
    "init_containers": [k8s.V1Container(name="fetch", image="fetch:1")],
    "do_xcom_push": True,
    "pod_template_file": ...,  # its path is known to the test only
    "pod_template_dict": TEMPLATE,
    "priority_class_name": "nightly",
    "pod_runtime_info_envs": [
        k8s.V1EnvVar(
            name="NODE", value_from=k8s.V1EnvVarSource(field_ref=k8s.V1ObjectFieldSelector(field_path="spec.nodeName"))
        )
    ],
    "configmaps": ["settings"],
    "base_container_name": "trainer",
    "termination_message_policy": "FallbackToLogsOnError",
    "active_deadline_seconds": 600,
}
"""Both operators build the same pod of it, but for what placement adds."""

ARE_ATTRIBUTES: dict[str, Any] = {
    "durable": False,
    "reattach_on_restart": False,
    "startup_timeout_seconds": 77,
    "schedule_timeout_seconds": 88,
    "get_logs": False,
    "init_container_logs": True,
    "container_logs": ["base", "exporter"],
    "xcom_sidecar_container_security_context": k8s.V1SecurityContext(run_as_user=1),
    "log_events_on_failure": True,
    "log_events_on_startup": False,
    "termination_grace_period": 5,
    "skip_on_exit_code": [99],
    "deferrable": False,
    "log_pod_spec_on_failure": True,
    "on_finish_action": "keep_pod",
    "on_kill_action": "keep_pod",
    "is_delete_operator_pod": True,
    "callbacks": KubernetesPodOperatorCallback,
    "progress_callback": print,
    "logging_interval": 30,
    "trigger_kwargs": {"team": "ml"},
    "container_name_log_prefix_enabled": False,
    "log_formatter": str,
}
"""They steer the operator, and mean to it what they mean to KubernetesPodOperator (tests/sandbox/test_drop_in.py)."""

THE_POOL_SAYS = {"kubernetes_conn_id", "in_cluster", "cluster_context", "config_file"}
"""Which cluster, and as whom: refused where it contradicts the pool, or not used."""

NOTHING_POLLS = {"startup_check_interval_seconds", "base_container_status_polling_interval", "poll_interval"}
"""Accepted, and without a meaning: the wait is a watch."""


DELIBERATE = {"startup_timeout_seconds": {"schedule_timeout_seconds"}}
"""Waiting for a node has a deadline of its own: a startup timeout that was made for nodes at hand must not set it."""


@pytest.fixture(autouse=True)
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KubernetesPodOperator looks for a cluster when it builds a pod; nothing is asked of it."""
    text = """
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
"""
    (tmp_path / "kubeconfig").write_text(text)
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "kubeconfig"))


def test_every_argument_of_kubernetes_pod_operator_is_in_one_list() -> None:
    lists = [set(SHAPES_THE_POD), set(ARE_ATTRIBUTES), THE_POOL_SAYS, NOTHING_POLLS]
    missing = NEWEST - set().union(*lists)
    assert not missing, f"KubernetesPodOperator has arguments that nobody has thought about: {missing}"
    assert sum(map(len, lists)) == len(set().union(*lists))


@pytest.mark.parametrize("argument", sorted(set(SHAPES_THE_POD) & NEWEST))
def test_the_pod_is_the_same_but_for_its_placement(argument: str, tmp_path: Path) -> None:
    value = SHAPES_THE_POD[argument]
    if argument == "pod_template_file":
        import yaml

        value = str(tmp_path / "pod.yaml")
        Path(value).write_text(yaml.safe_dump(TEMPLATE))
    arguments: dict[str, Any] = {"task_id": "train", "namespace": "ml", "random_name_suffix": False, "name": "train"}
    arguments[argument] = value
    theirs = built(KubernetesPodOperator(**arguments))
    ours = built(GpuPodOperator(**arguments, gpu_pool=a_pool()))
    lost = list(lacking(theirs, ours))
    assert not lost


def built(operator: KubernetesPodOperator) -> dict[str, Any]:
    """Return the pod that the operator would create; the provider gives a secret's volume a random name."""
    pod = json.dumps(ApiClient().sanitize_for_serialization(operator.build_pod_request_obj()))
    return json.loads(re.sub(r"secretvol[0-9a-f-]{36}", "secretvol", pod))  # type: ignore[no-any-return]


def lacking(theirs: Any, ours: Any, path: str = "") -> Any:
    """Yield what `theirs` says and `ours` does not; lists may have more entries, in any order."""
    if isinstance(theirs, Mapping):
        for key, value in theirs.items():
            yield from lacking(value, ours.get(key) if isinstance(ours, Mapping) else None, f"{path}.{key}")
    elif isinstance(theirs, list):
        for value in theirs:
            if not any(not list(lacking(value, one)) for one in ours or ()):
                yield f"{path}: {value}"
    elif theirs != ours:
        yield f"{path}: {theirs!r}, not {ours!r}"


def test_the_comparison_can_fail() -> None:
    assert list(lacking({"a": [{"b": 1}]}, {"a": [{"b": 2}]}))
    assert not list(lacking({"a": [{"b": 1}]}, {"a": [{"c": 3}, {"b": 1, "d": 2}]}))


@pytest.mark.parametrize("argument", sorted(set(ARE_ATTRIBUTES) & NEWEST))
def test_the_operator_keeps_what_it_is_told(argument: str) -> None:
    theirs = vars(KubernetesPodOperator(task_id="train", **{argument: ARE_ATTRIBUTES[argument]}))
    ours = vars(GpuPodOperator(task_id="train", gpu_pool=a_pool(), **{argument: ARE_ATTRIBUTES[argument]}))
    default = vars(KubernetesPodOperator(task_id="train"))
    changed = {name for name, value in theirs.items() if name[0] != "_" and repr(value) != repr(default.get(name))}
    for name in changed - DELIBERATE.get(argument, set()):
        assert repr(ours[name]) == repr(theirs[name]), name


@pytest.mark.parametrize("argument", sorted(THE_POOL_SAYS | NOTHING_POLLS))
def test_what_has_no_meaning_is_accepted(argument: str) -> None:
    value: Any = {"in_cluster": True, "kubernetes_conn_id": "prod", "config_file": "/k", "cluster_context": "c"}
    GpuPodOperator(task_id="train", gpu_pool=a_pool(), **{argument: value.get(argument, 7)})


# -- EksPodOperator's and GKEStartPodOperator's own arguments -----------------------------------------------------

EKS = EksGpuPool(name="e", cluster_name="k8s-ml", region="us-west-2", instance_types=("g6.xlarge",), max_nodes=1)
GKE = GkeGpuPool(
    name="g",
    cluster_name="k8s-ml",
    project_id="my-project",
    location="us-central1",
    machine_types=("g2-standard-4",),
    max_nodes=1,
)
METAL = KubernetesGpuPool(name="m", nodes=("gpu-1",), kubernetes_conn_id="lab", cluster_context="lab")


@pytest.mark.parametrize(
    ("pool", "arguments"),
    [
        (EKS, {"cluster_name": "k8s-ml", "region": "us-west-2", "aws_conn_id": "aws_default", "pod_name": "train"}),
        (EKS, {"cluster_name": "k8s-ml", "region": None, "in_cluster": False, "on_finish_action": None}),
        (EKS, {"cluster_name": "{{ var.value.cluster }}"}),
        (EKS, {"use_internal_ip": False}),
        (GKE, {"cluster_name": "k8s-ml", "location": "us-central1", "project_id": "my-project"}),
        (GKE, {"gcp_conn_id": "google_cloud_default", "impersonation_chain": None, "use_internal_ip": False}),
        (METAL, {"kubernetes_conn_id": "lab", "cluster_context": "lab"}),
        (METAL, {"cluster_name": "whatever", "region": "us-west-2"}),
    ],
)
def test_what_agrees_with_the_pool_is_taken(pool: GpuPool, arguments: dict[str, Any]) -> None:
    task = GpuPodOperator(task_id="train", gpu_pool=pool, **arguments)
    assert task.on_finish_action.value == "delete_pod"
    assert task.name == arguments.get("pod_name")


@pytest.mark.parametrize(
    ("pool", "arguments", "says"),
    [
        (EKS, {"cluster_name": "other"}, "cluster_name='other'"),
        (EKS, {"region": "eu-west-1"}, "region='eu-west-1'"),
        (EKS, {"aws_conn_id": "prod"}, "aws_conn_id='prod'"),
        (EKS, {"location": "us-central1"}, "is a EksGpuPool"),
        (EKS, {"pod_name": "one", "name": "two"}, "pod_name='one'"),
        (GKE, {"location": "europe-west4"}, "location='europe-west4'"),
        (GKE, {"use_dns_endpoint": True}, "use_dns_endpoint=True"),
        (GKE, {"impersonation_chain": ["a@b"]}, "impersonation_chain"),
        (METAL, {"kubernetes_conn_id": "prod"}, "kubernetes_conn_id='prod'"),
        (METAL, {"cluster_context": "prod"}, "cluster_context='prod'"),
    ],
)
def test_what_contradicts_the_pool_is_refused_when_the_dag_is_parsed(
    pool: GpuPool, arguments: dict[str, Any], says: str
) -> None:
    with pytest.raises(PoolSpecError, match=says.replace("[", r"\[")):
        GpuPodOperator(task_id="train", gpu_pool=pool, **arguments)


@pytest.mark.parametrize("where", ["dag", "group"])
@pytest.mark.parametrize(
    "default_args",
    [
        {"cluster_name": "other", "region": "eu-west-1", "aws_conn_id": "prod"},
        {"location": "us-central1", "project_id": "my-project", "gcp_conn_id": "prod", "use_dns_endpoint": True},
        {"kubernetes_conn_id": "prod", "cluster_context": "prod"},
    ],
    ids=lambda given: next(iter(given)),
)
@pytest.mark.parametrize("pool", [EKS, GKE, METAL], ids=lambda pool: pool.kind)
def test_default_args_for_other_operators_are_let_pass(pool: GpuPool, default_args: dict[str, Any], where: str) -> None:
    of_dag, of_group = (default_args, {}) if where == "dag" else ({}, default_args)
    start = datetime(2026, 1, 1)
    with (
        DAG("nightly", schedule=None, start_date=start, default_args=of_dag),
        TaskGroup("training", default_args=of_group),
    ):
        task = GpuPodOperator(task_id="train", gpu_pool=pool)
        mapped = GpuPodOperator.partial(task_id="sweep", gpu_pool=pool).expand(arguments=[["a"]])
        assert mapped.unmap({"arguments": ["a"]}).gpu_pool == task.gpu_pool == pool
        with pytest.raises(PoolSpecError, match="cluster_name='third'"):
            GpuPodOperator(task_id="refused", gpu_pool=EKS, cluster_name="third")


def test_pod_name_of_default_args_does_not_contend_with_a_name() -> None:
    with DAG("nightly", schedule=None, start_date=datetime(2026, 1, 1), default_args={"pod_name": "all"}):
        assert GpuPodOperator(task_id="one", gpu_pool=EKS, name="one").name == "one"
        assert GpuPodOperator(task_id="two", gpu_pool=EKS).name == "all"


@pytest.mark.filterwarnings("ignore:.*never mapped")
def test_mapped_tasks_are_refused_when_the_dag_is_parsed() -> None:
    with pytest.raises(PoolSpecError, match="region='eu-west-1'"):
        GpuPodOperator.partial(task_id="train", gpu_pool=EKS, region="eu-west-1")


@pytest.mark.parametrize("operator", [EksPodOperator, GKEStartPodOperator])
def test_every_argument_of_their_own_is_taken(operator: type[KubernetesPodOperator]) -> None:
    own = set(inspect.signature(operator.__init__).parameters) - {"self", "args", "kwargs"}
    taken = set(inspect.signature(MovedArguments.__init__).parameters) | NEWEST
    assert own <= taken, f"{operator.__name__} has arguments that nobody has thought about"


def test_mapped_tasks_take_them_too() -> None:
    with DAG("nightly", schedule=None, start_date=datetime(2026, 1, 1)):
        mapped = GpuPodOperator.partial(task_id="train", gpu_pool=EKS, cluster_name="k8s-ml", region="us-west-2")
        assert mapped.expand(arguments=[["a"], ["b"]]).partial_kwargs["cluster_name"] == "k8s-ml"
