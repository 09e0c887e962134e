"""Which code= is refused when the DAG is parsed, and from where it is taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, task
from airflow.serialization.serialized_objects import DagSerialization
from kubernetes.client import models as k8s

from airflow_gpu_provider import gpu_nodes
from airflow_gpu_provider.cli import metadata
from airflow_gpu_provider.cluster.api.code_requests import CODE_VERBS
from airflow_gpu_provider.errors import CodeUnusable, PermissionDenied, PoolSpecError
from airflow_gpu_provider.operators.gpu_pod import GpuPodOperator
from airflow_gpu_provider.operators.gpu_workload import GpuWorkloadOperator
from airflow_gpu_provider.operators.task_code import take_code
from airflow_gpu_provider.operators.training_code import check_code_of_trainings
from airflow_gpu_provider.reports.cluster_permissions import rules
from tests.unit.training.manifests import a
from tests.unit.training.test_manifest_placement import a_pool as a_large_pool
from tests.unit.training.test_pod_placement import a_pool


def dag_in(bundle: Path, relative: str = "dags/nightly.py") -> DAG:
    """Return a DAG as the DAG processor and a worker have it."""
    file = bundle / relative
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("")
    dag = DAG("nightly", schedule=None)
    dag.fileloc, dag.relative_fileloc = str(file), relative
    return dag


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("/etc", "Task train of DAG nightly: code='/etc' is an absolute path"),
        ("trainer/", "Task train of DAG nightly: code='trainer/': .* does not exist"),
        ("../..", "leads out of the DAG file's bundle"),
    ],
)
def test_code_that_is_not_in_the_bundle_is_refused_with_the_dag(tmp_path: Path, code: str, words: str) -> None:
    dag = dag_in(tmp_path / "bundle")

    def parse() -> None:
        GpuPodOperator(task_id="train", gpu_pool=a_pool(), code=code, dag=dag)
        dag.resolve_template_files()

    with pytest.raises(CodeUnusable, match=words):
        parse()


def test_mapped_code_is_refused_with_the_dag() -> None:
    with pytest.raises(CodeUnusable, match="absolute"):
        GpuPodOperator.partial(task_id="train", gpu_pool=a_pool(), code="/etc").expand(arguments=[["1"]])


def test_code_may_be_a_path() -> None:
    task = GpuPodOperator(task_id="train", gpu_pool=a_pool(), code=Path("trainer"))
    mapped = GpuPodOperator.partial(task_id="mapped", gpu_pool=a_pool(), code=Path("trainer")).expand(cmds=[["1"]])
    assert (task.code, mapped.partial_kwargs["code"]) == ("trainer", "trainer")


@pytest.mark.parametrize("kind", ["JobSet", "TrainJob", "RayJob", "PyTorchJob"])
def test_a_manifest_of_another_kind_than_job_gets_no_code(kind: str) -> None:
    def of(manifest: Any) -> GpuWorkloadOperator:
        return GpuWorkloadOperator(task_id="train", gpu_pool=a_large_pool(), manifest=manifest, code="bundle")

    with pytest.raises(CodeUnusable, match=f"code='bundle' with a manifest of kind {kind}"):
        of(a(kind))
    assert of(a("Job")).code == "bundle"


MOUNT = k8s.V1VolumeMount(name="out", mount_path="/app/out")
FULL = k8s.V1Pod(spec=k8s.V1PodSpec(containers=[k8s.V1Container(name="base", volume_mounts=[MOUNT])]))


@pytest.mark.parametrize("given", [{"volume_mounts": [MOUNT]}, {"full_pod_spec": FULL}])
def test_a_mount_at_app_is_refused_with_the_dag(given: dict[str, Any]) -> None:
    GpuPodOperator(task_id="train", gpu_pool=a_pool(), **given)
    with pytest.raises(PoolSpecError, match=r"base mounts a volume at /app/out, .* /app, read-only"):
        GpuPodOperator(task_id="train", gpu_pool=a_pool(), code="bundle", **given)
    with pytest.raises(PoolSpecError, match="mounts a volume at /app/out"):
        GpuPodOperator.partial(task_id="train", gpu_pool=a_pool(), code="bundle", **given)


def test_a_job_that_mounts_at_app_is_refused_with_the_dag() -> None:
    def of(path: str) -> None:
        job = a("Job")
        job["spec"]["template"]["spec"]["containers"][0]["volumeMounts"] = [{"name": "out", "mountPath": path}]
        GpuWorkloadOperator(task_id="train", gpu_pool=a_large_pool(), manifest=job, code="bundle")

    of("/apps")
    with pytest.raises(PoolSpecError, match="train mounts a volume at /app/"):
        of("/app/")


@pytest.mark.parametrize(("kind", "code"), [("JobSet", None), ("Job", "bundle")])
def test_code_in_default_args_is_for_the_tasks_that_can_have_it(kind: str, code: str | None) -> None:
    def task_of(manifest: Any) -> Any:
        with DAG("nightly", schedule=None, default_args={"code": "bundle"}):
            GpuWorkloadOperator.partial(task_id="mapped", gpu_pool=a_large_pool(), manifest=a(kind)).expand(
                namespace=["a", "b"]
            )
            return GpuWorkloadOperator(task_id="train", gpu_pool=a_large_pool(), manifest=manifest)

    assert task_of(a(kind)).code == code
    task = task_of("{{ params.manifest }}")
    task.manifest = a(kind)
    assert task.named_manifest["kind"] == kind
    assert task.code == code


def test_a_decorated_function_has_code_as_its_dag_has_it(tmp_path: Path) -> None:
    @task.gpu(gpu_pool=a_pool(), image="python", code="trainer/")
    def train() -> None: ...

    dag = dag_in(tmp_path)
    with dag:
        train()
    with pytest.raises(CodeUnusable, match=r"Task train of DAG nightly: code='trainer/': .* does not exist"):
        dag.resolve_template_files()
    (tmp_path / "dags" / "trainer").mkdir()
    dag.resolve_template_files()


def test_a_bundle_is_taken_whole_and_a_folder_by_the_dag_file(tmp_path: Path) -> None:
    dag = dag_in(tmp_path)
    (tmp_path / "dags" / "trainer").mkdir()
    (tmp_path / "dags" / "trainer" / "train.py").write_text("")
    assert [each.path for each in take_code("bundle", dag).files] == ["dags/nightly.py", "dags/trainer/train.py"]
    assert [each.path for each in take_code("trainer/", dag).files] == ["train.py"]


def test_without_a_bundle_the_dag_files_folder_is_one(tmp_path: Path) -> None:
    dag = dag_in(tmp_path)
    dag.relative_fileloc = dag.fileloc
    assert [each.path for each in take_code("bundle", dag).files] == ["nightly.py"]
    with pytest.raises(CodeUnusable, match="leads out"):
        take_code("..", dag)
    with pytest.raises(CodeUnusable, match="needs the file of the task's DAG"):
        take_code("bundle", None)


class Rights:
    """An API server that allows nothing but `allowed` of what it is asked about."""

    def __init__(self, *allowed: str) -> None:
        self.namespaces = set[str]()
        self._allowed = allowed

    def call_api(self, path: str, method: str, *, body: Any, **_: Any) -> Any:
        asked = body["spec"]["resourceAttributes"]
        assert asked["resource"] == "configmaps"
        self.namespaces.add(asked["namespace"])
        return {"status": {"allowed": asked["verb"] in self._allowed}}


def ensure_before(bundle: Path, **training: Any) -> Any:
    dag = dag_in(bundle)
    with dag, gpu_nodes(a_pool(name="gpu")):
        GpuPodOperator(task_id="train", image="python", **training)
    return dag.get_task("gpu.ensure")


def test_ensure_finds_what_would_refuse_the_code_before_it_wants_a_node(tmp_path: Path) -> None:
    ensure = ensure_before(tmp_path, code="bundle", namespace="ml")
    rights: Any = Rights(*CODE_VERBS)
    check_code_of_trainings(ensure, rights)
    assert rights.namespaces == {"ml"}
    with pytest.raises(PermissionDenied, match=r"create and delete configmaps in namespace ml.*docs/rbac/code\.yaml"):
        check_code_of_trainings(ensure, Rights("get"))  # type: ignore[arg-type]
    (tmp_path / "data.csv").write_bytes(b"x" * 2**22)
    with pytest.raises(CodeUnusable, match=r"largest: data\.csv"):
        check_code_of_trainings(ensure, rights)


def test_the_code_of_each_mapped_instance_is_checked_with_the_dag_and_by_ensure(tmp_path: Path) -> None:
    dag = dag_in(tmp_path)
    (tmp_path / "dags" / "proj").mkdir()
    (tmp_path / "dags" / "proj" / "train.py").write_text("")
    with dag, gpu_nodes(a_pool(name="gpu")):
        GpuPodOperator.partial(task_id="train", image="python").expand(code=["proj", "nothere"])
    rights: Any = Rights(*CODE_VERBS)
    with pytest.raises(CodeUnusable, match=r"Task train of DAG nightly: code='nothere': .* does not exist"):
        dag.resolve_template_files()
    with pytest.raises(CodeUnusable, match=r"code='nothere': .* does not exist"):
        check_code_of_trainings(dag.get_task("gpu.ensure"), rights)
    (tmp_path / "dags" / "nothere").symlink_to("proj")
    dag.resolve_template_files()
    check_code_of_trainings(dag.get_task("gpu.ensure"), rights)
    assert rights.namespaces == {"default"}


def test_ensure_asks_nothing_where_no_training_has_code(tmp_path: Path) -> None:
    rights: Any = Rights()
    check_code_of_trainings(ensure_before(tmp_path), rights)
    assert rights.namespaces == set()


def test_the_doctor_knows_the_pools_on_which_a_dag_has_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dag = dag_in(tmp_path)
    with dag:
        GpuPodOperator(task_id="train", gpu_pool=a_pool(name="with"), image="python", code="bundle")
        GpuPodOperator(task_id="other", gpu_pool=a_pool(name="without"), image="python")
    tasks = [each["__var"] for each in DagSerialization.to_dict(dag)["dag"]["tasks"]]
    monkeypatch.setattr(metadata, "serialized_tasks", lambda dag_id: [(dag_id, tasks)])
    assert metadata.pools_with_code("nightly") == {"with"}
    assert any(rule.roles == "code.yaml" for rule in rules(a_pool(), "ml", takes_code=True))
    assert not any(rule.roles == "code.yaml" for rule in rules(a_pool(), "ml"))
