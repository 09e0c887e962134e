"""Drop-in, running: what a KubernetesPodOperator's arguments do, a GpuPodOperator's do, on the same cluster.

Each case is one task in both classes - deferred and not - and what is compared is what a user sees of it: the task's
result, its log, the calls of its callbacks, and the pods that are left. The log of a deferred GpuPodOperator is the
trigger's and the operator's together; it has to be that of a KubernetesPodOperator which does not defer, line for line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from _pytest.mark import ParameterSet
from airflow.providers.cncf.kubernetes.callbacks import KubernetesPodOperatorCallback
from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.providers.cncf.kubernetes.secret import Secret
from airflow.sdk.exceptions import AirflowException, AirflowSkipException
from kubernetes import client, config
from kubernetes.client import models as k8s
from structlog.testing import capture_logs

from airflow_gpu_provider import EksGpuPool, EnsureGpuPoolOperator, GpuPodOperator, InstallDevicePluginOperator
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.running import context_of, eventually, run

SAY = "echo hello from the pod"
SAID = (
    "hello from the pod",
    "hello from the environment",
    "hello sesame sesame",
    "hello map",
    "hello from fetch",
    "fetched",
    "beside",
    "hello and goodbye",
    "hello template",
)
CASES: dict[str, dict[str, Any]] = {
    "arguments": {"cmds": ["sh", "-c"], "arguments": [SAY]},
    "result": {"cmds": ["sh", "-c", "echo '[1, 2]' > /airflow/xcom/return.json"], "do_xcom_push": True},
    "env_vars": {"cmds": ["sh", "-c", "echo $A from $B"], "env_vars": {"A": "hello", "B": "the environment"}},
    "secrets": {
        "cmds": ["sh", "-c", "echo hello $(cat /etc/token/key) $TOKEN"],
        "secrets": [Secret("volume", "/etc/token", "token"), Secret("env", "TOKEN", "token", "key")],
    },
    "configmaps": {"cmds": ["sh", "-c", "echo hello $GREETING"], "configmaps": ["settings"]},
    "volumes": {
        "cmds": ["sh", "-c", "cat /data/greeting"],
        "volumes": [k8s.V1Volume(name="data", empty_dir=k8s.V1EmptyDirVolumeSource())],
        "volume_mounts": [k8s.V1VolumeMount(name="data", mount_path="/data")],
        "init_containers": [
            k8s.V1Container(
                name="fetch",
                image="busybox:1.36",
                command=["sh", "-c", "echo hello from fetch > /data/greeting; echo fetched"],
                volume_mounts=[k8s.V1VolumeMount(name="data", mount_path="/data")],
            )
        ],
        "init_container_logs": True,
    },
    "full_pod_spec": {
        "full_pod_spec": k8s.V1Pod(
            metadata=k8s.V1ObjectMeta(labels={"team": "ml"}),
            spec=k8s.V1PodSpec(
                containers=[
                    k8s.V1Container(name="base", image="busybox:1.36", command=["sh", "-c", SAY]),
                    k8s.V1Container(name="side", image="busybox:1.36", command=["sh", "-c", "echo beside"]),
                ]
            ),
        ),
    },
    "base_container_name": {"base_container_name": "trainer", "cmds": ["sh", "-c", SAY]},
    "log_formatter": {
        "cmds": ["sh", "-c", SAY],
        "log_formatter": lambda container, line: f"<{container}> {line}",
    },
    "keep_pod": {"cmds": ["sh", "-c", SAY], "on_finish_action": "keep_pod"},
    "delete_succeeded_pod": {"cmds": ["sh", "-c", "exit 3"], "on_finish_action": "delete_succeeded_pod"},
    "skip": {"cmds": ["sh", "-c", "exit 9"], "skip_on_exit_code": 9},
    "skip_on_another_code": {"cmds": ["sh", "-c", "exit 8"], "skip_on_exit_code": 9},
    "fails": {"cmds": ["sh", "-c", "echo hello and goodbye; exit 1"]},
}

SHAPES_THE_POD = {"env_vars", "secrets", "configmaps"}
"""By day they do not defer: that the pod is the same either way is tests/unit/operators/test_drop_in.py's to hold."""


class Calls(KubernetesPodOperatorCallback):
    """Notes which callbacks are called."""

    seen: ClassVar[list[str]] = []


def _noting(name: str) -> Any:
    def note(**kwargs: Any) -> None:
        assert kwargs["operator"] is not None or "client" in kwargs
        Calls.seen.append(name)

    return staticmethod(note)


for _name in (
    "on_sync_client_creation",
    "on_pod_manifest_created",
    "on_pod_creation",
    "on_pod_starting",
    "on_pod_completion",
    "on_pod_wrapup",
    "on_pod_teardown",
    "on_pod_cleanup",
):
    setattr(Calls, _name, _noting(_name))


@pytest.fixture(scope="module")
def core(gpu_sandbox: Sandbox) -> Iterator[client.CoreV1Api]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in gpu_sandbox.env().items():
            patch.setenv(name, value)
        patch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")
        patch.setattr("airflow_gpu_provider.triggers.record.EVENT_AFTER_SECONDS", 0)
        # The triggers of older KubernetesPodOperators refuse this one beside the connection's.
        patch.delenv("KUBECONFIG")
        core = client.CoreV1Api(config.new_client_from_config(str(gpu_sandbox.kubeconfig)))
        core.create_namespaced_secret("default", {"metadata": {"name": "token"}, "stringData": {"key": "sesame"}})
        core.create_namespaced_config_map("default", {"metadata": {"name": "settings"}, "data": {"GREETING": "map"}})
        yield core
        core.delete_namespaced_secret("token", "default")
        core.delete_namespaced_config_map("settings", "default")


@pytest.fixture(scope="module")
def pool(gpu_sandbox: Sandbox, core: client.CoreV1Api) -> EksGpuPool:
    pool = EksGpuPool(
        name="drop-in",
        cluster_name=gpu_sandbox.cluster_name,
        region=gpu_sandbox.region,
        instance_types=("g6.xlarge",),
        zones=(gpu_sandbox.zones[0],),
        max_nodes=1,
    )
    run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, deferrable=False))
    run(InstallDevicePluginOperator(task_id="device_plugin", gpu_pool=pool))
    return pool


def seen_of(operator: KubernetesPodOperator, core: client.CoreV1Api) -> dict[str, Any]:
    """Run the task, and return what a user sees of it."""
    Calls.seen.clear()
    context = context_of(operator)
    end, returned, xcoms = "returns", None, context["ti"].xcoms
    with capture_logs() as log:
        try:
            returned = run(operator, context)
        except AirflowSkipException:
            end = "is skipped"
        except AirflowException:
            end = "fails"
    left = phases_left(core)
    core.delete_collection_namespaced_pod("default", grace_period_seconds=1)
    eventually(lambda: not core.list_namespaced_pod("default").items)
    return {
        "end": end,
        # Airflow pushes what a task returns; older triggers' operators push it themselves.
        "result": xcoms.get("return_value") if returned is None else returned,
        "log": sorted(_container_lines(log)),
        "callbacks": sorted(set(Calls.seen)),
        "pods left": left,
        "xcom": sorted(set(xcoms) - {"timeline", "error", "return_value"}),
    }


def phases_left(core: client.CoreV1Api) -> list[str]:
    """The phases of the pods that nobody deletes, once they have ended: a container's end is told before its pod's."""

    def have_ended() -> bool:
        left[:] = [p for p in core.list_namespaced_pod("default").items if not p.metadata.deletion_timestamp]
        return all(pod.status.phase in ("Succeeded", "Failed") for pod in left)

    left: list[client.V1Pod] = []
    eventually(have_ended)
    return [pod.status.phase for pod in left]


def _container_lines(log: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what the pod's containers wrote, of all that the task logged; a message may hold several lines."""
    for record in log:
        arguments = record.get("positional_args") or ()
        text = str(record["event"]) % arguments if arguments else str(record["event"])
        for line in text.splitlines():
            if any(line.endswith(words) for words in SAID) or line.startswith("<base> "):
                yield line.strip()


@pytest.fixture(scope="module")
def seen_without_deferring() -> dict[str, dict[str, Any]]:
    """What was seen of a case's KubernetesPodOperator that does not defer: both ways are compared with it."""
    return {}


def _cases() -> Iterator[ParameterSet]:
    for case in sorted(CASES):
        for deferrable in (False, True):
            marks = pytest.mark.nightly if deferrable and case in SHAPES_THE_POD else ()
            yield pytest.param(case, deferrable, marks=marks, id=f"{case}-{'deferred' if deferrable else 'blocking'}")


@pytest.mark.parametrize(("case", "deferrable"), _cases())
def test_it_is_seen_to_do_the_same(
    case: str,
    deferrable: bool,
    pool: EksGpuPool,
    core: client.CoreV1Api,
    seen_without_deferring: dict[str, dict[str, Any]],
) -> None:
    arguments = {"task_id": "train", "image": "busybox:1.36", "callbacks": Calls, **CASES[case]}
    if case not in seen_without_deferring:
        seen_without_deferring[case] = seen_of(KubernetesPodOperator(**arguments, deferrable=False), core)
    theirs = {**seen_without_deferring[case]}
    if deferrable:
        # KubernetesPodOperator's own says less once it defers: no init containers, no log_formatter (docs/drop-in.md).
        theirs = seen_of(KubernetesPodOperator(**arguments, deferrable=True), core) | {"log": theirs["log"]}
    ours = seen_of(GpuPodOperator(**arguments, deferrable=deferrable, gpu_pool=pool), core)
    if theirs["end"] == "fails":
        # KubernetesPodOperator leaves it out where it raises (docs/drop-in.md).
        theirs["callbacks"] = sorted({*theirs["callbacks"], "on_pod_cleanup"})
    assert ours == theirs
    assert ours["log"] or "exit" in CASES[case]["cmds"][-1] or case == "result"


def test_a_template_file(pool: EksGpuPool, core: client.CoreV1Api, tmp_path: Path) -> None:
    container = {"name": "base", "image": "busybox:1.36", "command": ["sh", "-c", "echo hello $A"]}
    spec = {"containers": [{**container, "env": [{"name": "A", "value": "template"}]}], "restartPolicy": "Never"}
    template = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "t", "labels": {"team": "ml"}}, "spec": spec}
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump(template))
    arguments: dict[str, Any] = {"task_id": "train", "pod_template_file": str(tmp_path / "pod.yaml")}
    theirs = seen_of(KubernetesPodOperator(**arguments), core)
    ours = seen_of(GpuPodOperator(**arguments, deferrable=False, gpu_pool=pool), core)
    assert ours == theirs
    assert ours["log"] == ["[base] hello template"]
