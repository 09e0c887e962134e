"""What pulls a block's images: its objects, the program that its containers wait with, and how long the pulls took."""

from __future__ import annotations

import base64
import platform
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.addons.prefetch import manifests, pull_phases, waiting_program
from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.operators.prefetching import begin_prefetch
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.scaling.apply.reconcile import Reconciler

POOL = EksGpuPool(name="gpu", cluster_name="ml", region="us-west-2", instance_types=("g6.xlarge",), max_nodes=1)
KEY = DemandKey(installation="here", dag_id="nightly", run_id="r", pool="gpu", block="gpu")


def objects(*images: str, secrets: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    return manifests(POOL, KEY, "u-1", images, secrets)


def specs(*images: str, secrets: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    found = [each for each in objects(*images, secrets=secrets) if each["kind"] == "DaemonSet"]
    return [each["spec"]["template"]["spec"] for each in found]


def test_all_of_it_goes_with_the_demand() -> None:
    for each in objects("train:1"):
        (owner,) = each["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("Lease", KEY.lease_name, "u-1")
        assert (
            each["metadata"]["namespace"] == "airflow-gpu-provider"
        )  # the owner's, else Kubernetes deletes it at once


def test_one_daemon_set_for_each_architecture_with_its_program() -> None:
    (programs, *sets) = objects("train:1", "eval:2", "train:1")
    for each in sets:
        spec = each["spec"]["template"]["spec"]
        arch = spec["nodeSelector"]["kubernetes.io/arch"]
        assert base64.b64decode(programs["binaryData"][arch]) == waiting_program(arch)
        assert [c["image"] for c in spec["containers"]] == ["train:1", "eval:2"]
        assert all(c["command"] == [f"/airflow-gpu-provider/{arch}"] for c in spec["containers"])
        assert POOL.node_selector.items() <= spec["nodeSelector"].items()
        assert each["spec"]["selector"]["matchLabels"].items() <= each["spec"]["template"]["metadata"]["labels"].items()


def test_it_starts_on_nodes_that_are_not_ready_and_takes_nothing_of_them() -> None:
    for spec in specs("train:1"):
        assert spec["tolerations"] == [{"operator": "Exists"}]
        (container,) = spec["containers"]
        assert container["resources"] == {"requests": {"cpu": "0", "memory": "0"}}
        assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in container["env"]


def test_pull_secrets_are_given_on() -> None:
    assert all(spec["imagePullSecrets"] == [{"name": "regcred"}] for spec in specs("a", secrets=("regcred",)))
    assert not any("imagePullSecrets" in spec for spec in specs("a"))


def test_the_program_waits_until_it_is_killed(tmp_path: Path) -> None:
    arch = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    program = tmp_path / "wait"
    program.write_bytes(waiting_program(arch))
    program.chmod(0o555)
    with subprocess.Popen([program]) as process:
        waits = Path(f"/proc/{process.pid}/stat")
        while waits.read_text().rpartition(")")[2].split()[0] != "S":  # a signal or an exit would end this, too
            assert process.poll() is None
        process.kill()
    assert process.returncode == -9


@pytest.mark.parametrize("arch", ["amd64", "arm64"])
def test_the_program_is_an_executable_of_that_machine(arch: str) -> None:
    program = waiting_program(arch)
    assert program[:6] == b"\x7fELF\x02\x01"
    assert int.from_bytes(program[18:20], "little") == {"amd64": 62, "arm64": 183}[arch]
    assert len(program) < 200


def at(seconds: int) -> str:
    return f"2026-01-01T02:{seconds // 60:02d}:{seconds % 60:02d}Z"


def pod(begun: int | None, **started: int | None) -> dict[str, Any]:
    """Return a pod whose containers' images are their names, running since these seconds."""
    states = {name: {} if at_ is None else {"running": {"startedAt": at(at_)}} for name, at_ in started.items()}
    return {
        "spec": {"containers": [{"name": name, "image": name} for name in started]},
        "status": {
            **({} if begun is None else {"startTime": at(begun)}),
            "containerStatuses": [{"name": name, "state": state} for name, state in states.items()],
        },
    }


def test_images_of_a_node_are_pulled_in_turn() -> None:
    phases, left = pull_phases([pod(5, train=65, eval=75)])
    assert [(each["image"], each["seconds"]) for each in phases] == [("train", 60.0), ("eval", 10.0)]
    assert {each["phase"] for each in phases} == {"image pull"}
    assert left == {}


def test_the_slowest_node_counts_and_what_one_still_pulls_is_not_over() -> None:
    phases, left = pull_phases([pod(5, train=65, eval=75), pod(9, train=99, eval=None)])
    assert [(each["image"], each["seconds"]) for each in phases] == [("train", 90.0)]
    assert left == {"eval": ""}


def test_an_image_that_no_node_can_pull_is_told_with_the_kubelets_reason() -> None:
    """It backs off between its tries; of a container whose turn has not come it says ContainerCreating."""
    tried = pod(5, train=None, eval=None)
    failed = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "train": not found'}
    first, other = tried["status"]["containerStatuses"]
    first["state"], other["state"] = {"waiting": failed}, {"waiting": {"reason": "ContainerCreating"}}
    why = 'ImagePullBackOff: Back-off pulling image "train": not found'
    for pods in ([tried, pod(None, train=None)], [pod(None, train=None), tried]):
        assert pull_phases(pods)[1] == {"train": why, "eval": ""}


def test_a_pod_that_no_kubelet_has_seen_has_pulled_nothing() -> None:
    assert pull_phases([pod(None, train=None)]) == ([], {"train": ""})
    assert pull_phases([]) == ([], {})


def test_what_is_rendered_to_no_list_costs_a_warning() -> None:
    said: list[str] = []
    log: Any = SimpleNamespace(warning=lambda form, *args: said.append(form % args))
    nobody: Any = None
    begin_prefetch("train:1", (), nobody, KEY, log)
    assert said[0].startswith("No image is pulled before the trainings do so: prefetch='train:1'.")


@pytest.mark.parametrize("argument", ["prefetch", "prefetch_secrets"])
@pytest.mark.parametrize("names", ["train:1", [""], [1], None, True, {"train:1": 1}])
def test_what_is_no_list_of_names_is_refused_when_the_dag_is_parsed(argument: str, names: Any) -> None:
    with pytest.raises(PoolSpecError, match=argument):
        EnsureGpuPoolOperator(task_id="ensure", gpu_pool=POOL, **{argument: names})


@pytest.mark.parametrize(
    ("argument", "name"),
    [
        *(
            ("prefetch", name)
            for name in ("A B", "train 1", "Train:1", "https://r.example/train:1", "train:", "train@1")
        ),
        *(("prefetch_secrets", name) for name in ("Reg Cred", "regcred,other", "reg_cred")),
    ],
)
def test_what_names_no_image_and_no_secret_is_refused_when_the_dag_is_parsed(argument: str, name: str) -> None:
    with pytest.raises(PoolSpecError, match=f"{argument} has {name!r}, which is no "):
        EnsureGpuPoolOperator(task_id="ensure", gpu_pool=POOL, **{argument: ["{{ params.first }}", name]})


def test_what_names_images_is_accepted() -> None:
    digest = f"@sha256:{'0' * 64}"
    images = ["train", "train:1", "ml/train:v1.2_3", "Localhost:5000/ml/train", "[fd00::1]:5000/a__b/c-d.e" + digest]
    images += ["123.dkr.ecr.us-west-2.amazonaws.com/train:1" + digest, "{{ var.value.image }}"]
    ensure = EnsureGpuPoolOperator(task_id="e", gpu_pool=POOL, prefetch=images, prefetch_secrets=["reg.cred-1"])
    assert ensure.prefetch == images


@pytest.mark.parametrize("rendered", ["train:1, data:1", ["train:1", ""]])
def test_or_passed_over_with_a_warning_when_its_template_is_rendered(rendered: Any) -> None:
    warning = Mock()
    log: Any = SimpleNamespace(warning=warning)
    begin_prefetch(rendered, (), cast(Reconciler, None), KEY, log)  # nothing is asked of the cluster
    assert "It is a list of names" in str(warning.call_args.args[1])
