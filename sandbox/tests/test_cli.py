"""`gpu-sandbox` from the outside, and sandboxes as processes: what runs, what is found, what is left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpu_sandbox import SandboxProcess
from gpu_sandbox.errors import ComponentFailed

Cli = Callable[..., "subprocess.CompletedProcess[str]"]

GPU_SANDBOX = [sys.executable, "-m", "gpu_sandbox.cli"]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """With state and temporary files of its own, so that leftovers show."""
    folder = tmp_path_factory.mktemp("user")
    for name in ("run", "tmp"):
        (folder / name).mkdir()
    return {**os.environ, "XDG_RUNTIME_DIR": str(folder / "run"), "TMPDIR": str(folder / "tmp")}


@pytest.fixture(scope="module")
def gpu_sandbox_cli(environment: dict[str, str]) -> Cli:
    def run(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        reply = subprocess.run([*GPU_SANDBOX, *arguments], env=environment, capture_output=True, text=True)
        assert reply.returncode == 0 or not check, reply.stderr
        return reply

    return run


@pytest.fixture(scope="module")
def detached(gpu_sandbox_cli: Cli, environment: dict[str, str]) -> Iterator[str]:
    gpu_sandbox_cli("up", "--detach", "--name", "shared", "--boot-seconds", "0.5")
    yield "shared"
    gpu_sandbox_cli("down", "--name", "shared")
    assert leftovers(environment) == []


@pytest.fixture
def fault(detached: str, gpu_sandbox_cli: Cli) -> Iterator[Cli]:
    """`gpu-sandbox fault` of the shared sandbox; a test that fails leaves no fault to the next one."""
    yield lambda *arguments, check=True: gpu_sandbox_cli("fault", *arguments, "--name", detached, check=check)
    gpu_sandbox_cli("fault", "clear", "--name", detached)


def leftovers(environment: dict[str, str]) -> list[str]:
    state = Path(environment["XDG_RUNTIME_DIR"], "airflow-gpu-provider").glob("*.json")
    return [str(path) for path in (*state, *Path(environment["TMPDIR"]).iterdir())]


def state_of(environment: dict[str, str], name: str) -> dict[str, Any]:
    path = Path(environment["XDG_RUNTIME_DIR"], "airflow-gpu-provider", f"{name}.json")
    assert oct(path.stat().st_mode & 0o777) == "0o600"
    state: dict[str, Any] = json.loads(path.read_text())
    return state


def family(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def until_dead(processes: list[psutil.Process], *, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while alive := [process for process in processes if lives(process)]:
        assert time.monotonic() < deadline, f"still there after {seconds} s: {alive}"
        time.sleep(0.02)


def lives(process: psutil.Process) -> bool:
    """A zombie does not: only its parent's interest in it is left."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def exports(shell: str) -> dict[str, str]:
    """What a shell makes of it."""
    reply = subprocess.run(
        ["sh", "-c", f"{shell}\nexec {sys.executable} -c 'import json, os; print(json.dumps(dict(os.environ)))'"],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.environ["PATH"]},
    )
    values: dict[str, str] = json.loads(reply.stdout)
    return values


def test_env_is_what_clients_need(detached: str, gpu_sandbox_cli: Cli) -> None:
    env = exports(gpu_sandbox_cli("env", "--name", detached).stdout)
    program = """
import boto3, json, os
from kubernetes import client, config
config.load_kube_config()
cluster = boto3.client("eks").describe_cluster(name=os.environ["GPU_SANDBOX_CLUSTER"])["cluster"]
print(json.dumps({
    "nodes": [node.metadata.name for node in client.CoreV1Api().list_node().items],
    "server": client.Configuration.get_default_copy().host,
    "endpoint": cluster["endpoint"],
    "account": boto3.client("sts").get_caller_identity()["Account"],
}))
"""
    reply = subprocess.run([sys.executable, "-c", program], env=env, check=True, capture_output=True, text=True)
    seen = json.loads(reply.stdout)
    assert seen["nodes"] == ["sandbox-system"]
    assert seen["server"] == seen["endpoint"]
    assert seen["account"] == "123456789012"
    assert json.loads(env["GPU_SANDBOX_SUBNETS"]).keys() == {"us-west-2a", "us-west-2b", "us-west-2c"}


def test_airflow_takes_the_connections(detached: str, gpu_sandbox_cli: Cli, tmp_path: Path) -> None:
    env = exports(gpu_sandbox_cli("env", "--name", detached).stdout)
    program = """
from airflow.providers.amazon.aws.hooks.eks import EksHook
from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
print(EksHook(aws_conn_id="aws_default").list_clusters())
print([node.metadata.name for node in KubernetesHook().core_v1_client.list_node().items])
"""
    reply = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env=env | {"AIRFLOW_HOME": str(tmp_path), "HOME": str(tmp_path)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert reply.stdout.splitlines()[-2:] == ["['k8s-ml']", "['sandbox-system']"]


@pytest.mark.nightly
def test_a_real_airflow_runs_over_ones_own_dags(detached: str, environment: dict[str, str], tmp_path: Path) -> None:
    command = [*GPU_SANDBOX, "airflow", "--name", detached, "--dags", str(tmp_path), "--home", str(tmp_path / "home")]
    # A shell starts what is in its background with SIGINT ignored, and tests may be there.
    hears = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, preexec_fn=hears) as airflow:
        assert airflow.stderr is not None
        for line in airflow.stderr:
            if "In another shell" in line:
                break
        asked = f"{sys.executable} -m airflow config get-value core dags_folder"
        script = f". {tmp_path}/home/airflow.env; {asked}; echo $AWS_ENDPOINT_URL"
        shown = subprocess.run(["sh", "-c", script], env=environment, capture_output=True, text=True, check=True)
        airflow.send_signal(signal.SIGINT)
        assert airflow.wait(60) == 130
    *_, folder, endpoint = shown.stdout.splitlines()
    assert folder == str(tmp_path)
    assert endpoint.startswith("http://127.0.0.1:")


def test_status_for_people_and_for_programs(detached: str, gpu_sandbox_cli: Cli) -> None:
    status = json.loads(gpu_sandbox_cli("status", "--name", detached, "--output", "json").stdout)
    assert status["kubernetes_version"] == "v1.36.3"
    assert all(status["components"].values())
    assert [(node["name"], node["ready"]) for node in status["nodes"]] == [("sandbox-system", True)]
    assert "sandbox-system" in gpu_sandbox_cli("status", "--name", detached).stdout


def test_faults_add_up_until_they_are_cleared(detached: str, fault: Cli, gpu_sandbox_cli: Cli) -> None:
    def faults() -> dict[str, Any]:
        status = json.loads(gpu_sandbox_cli("status", "--name", detached, "--output", "json").stdout)
        return dict(status["faults"])

    fault("stockout", "--zone", "us-west-2a", "--market", "spot", "--left", "2")
    fault("boot-seconds", "7")
    fault("device-plugin-never-ready")
    fault("autoscaler-dead")
    fault("throttle", "--service", "eks", "--rate", "0.5")
    fault("errors", "--rate", "0.25")
    fault("quota", "L-DB2E81BA", "4")
    fault("call-limit", "eks:DescribeNodegroup", "0.5")
    fault("driver-never-ready")
    fault("token-seconds", "60")
    fault("deadline-speed", "20")
    fault("lease-conflicts", "--rate", "0.1")
    assert faults() == {
        "stockouts": [
            {"zone": "us-west-2a", "instance_type": None, "market": "spot", "code": None, "left": 2, "placed": False}
        ],
        "boot_seconds": 7.0,
        "device_plugin_never_ready": True,
        "driver_never_ready": True,
        "autoscaler_dead": True,
        "token_seconds": 60.0,
        "deadline_speed": 20.0,
        "lease_conflict_rate": 0.1,
        "throttle_rates": {"eks": 0.5},
        "error_rates": {"*": 0.25},
        "quotas": {"L-DB2E81BA": 4.0},
        "call_limits": {"eks:DescribeNodegroup": {"per_second": 0.5, "burst": 10.0}},
        "gpu_uses": [],
    }
    fault("clear")
    assert not any(faults().values())


@pytest.mark.parametrize(
    ("kind", "code"), [("throttle", "ThrottlingException"), ("errors", "ServerException")], ids=["throttle", "errors"]
)
def test_aws_calls_fail_as_they_were_told(
    kind: str, code: str, detached: str, fault: Cli, gpu_sandbox_cli: Cli
) -> None:
    env = exports(gpu_sandbox_cli("env", "--name", detached).stdout) | {"AWS_MAX_ATTEMPTS": "1"}
    program = "import boto3; boto3.client('eks').list_clusters()"
    fault(kind, "--rate", "1")
    reply = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert code in reply.stderr
    fault("clear")
    subprocess.run([sys.executable, "-c", program], env=env, check=True)


def test_a_wrong_fault_is_refused_in_words(fault: Cli) -> None:
    reply = fault("errors", "--rate", "2", check=False)
    assert (reply.returncode, reply.stderr) == (1, "gpu-sandbox: a rate is a share between 0 and 1; not 2.0\n")


def test_restart_of_the_api_server_returns_when_it_is_back(detached: str, gpu_sandbox_cli: Cli) -> None:
    started = time.monotonic()
    gpu_sandbox_cli("fault", "restart-apiserver", "--down-seconds", "1", "--name", detached)
    assert time.monotonic() - started > 1
    status = json.loads(gpu_sandbox_cli("status", "--name", detached, "--output", "json").stdout)
    assert status["api_server"]


def test_a_name_is_taken_once(detached: str, gpu_sandbox_cli: Cli) -> None:
    reply = gpu_sandbox_cli("up", "--name", detached, check=False)
    assert reply.returncode == 1
    assert "is running or starting" in reply.stderr


@pytest.mark.parametrize("command", [["status"], ["env"], ["down"], ["fault", "clear"]])
def test_without_a_sandbox_commands_say_so(command: list[str], gpu_sandbox_cli: Cli) -> None:
    reply = gpu_sandbox_cli(*command, "--name", "nobody", check=False)
    assert reply.returncode == 1
    assert "no sandbox named 'nobody' is running" in reply.stderr


def test_status_and_faults_are_those_of_the_shells_sandbox(
    detached: str, gpu_sandbox_cli: Cli, environment: dict[str, str]
) -> None:
    shell = environment | exports(gpu_sandbox_cli("env", "--name", detached).stdout)
    reply = subprocess.run([*GPU_SANDBOX, "status"], env=shell, capture_output=True, text=True)
    assert reply.stdout.startswith("cluster k8s-ml")
    other = subprocess.run([*GPU_SANDBOX, "status", "--name", "nobodys"], env=shell, capture_output=True, text=True)
    assert "nobodys" in other.stderr


def test_the_control_api_needs_its_token(detached: str, environment: dict[str, str]) -> None:
    from gpu_sandbox.control_api import ControlApiClient
    from gpu_sandbox.errors import ControlApiError

    url = state_of(environment, detached)["url"]
    with pytest.raises(ControlApiError, match="wrong or missing bearer token"):
        ControlApiClient(url=url, token="guessed").call("POST", "/down")


def test_down_leaves_nothing(gpu_sandbox_cli: Cli, environment: dict[str, str]) -> None:
    before = leftovers(environment)
    gpu_sandbox_cli("up", "--detach", "--name", "brief")
    processes = family(state_of(environment, "brief")["pid"])
    assert len(processes) > 5
    gpu_sandbox_cli("down", "--name", "brief")
    until_dead(processes)
    assert leftovers(environment) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_and_leaves_nothing(number: signal.Signals, environment: dict[str, str]) -> None:
    before = leftovers(environment)
    with subprocess.Popen(
        [*GPU_SANDBOX, "up", "--name", "foreground"], env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        wait_for_line(process, "ready.")
        processes = family(process.pid)
        process.send_signal(number)
        process.send_signal(number)
        assert process.wait(120) == 0
    until_dead(processes)
    assert leftovers(environment) == before


def test_ctrl_c_while_it_starts_leaves_nothing(environment: dict[str, str]) -> None:
    before = leftovers(environment)
    with subprocess.Popen(
        [*GPU_SANDBOX, "up", "--name", "impatient"], env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        wait_for_line(process, "starting etcd")
        deadline = time.monotonic() + 120
        while len(family(process.pid)) < 3:
            assert time.monotonic() < deadline, "the API server never started"
            time.sleep(0.01)
        processes = family(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0
    until_dead(processes)
    assert leftovers(environment) == before


def test_kill_of_the_supervisor_leaves_no_process(gpu_sandbox_cli: Cli, environment: dict[str, str]) -> None:
    before = leftovers(environment)
    gpu_sandbox_cli("up", "--detach", "--name", "killed")
    state = state_of(environment, "killed")
    env = exports(gpu_sandbox_cli("env", "--name", "killed").stdout)
    run_sleeping_pod(env)
    processes = family(state["pid"])
    assert any("sleep" in process.name() for process in processes)
    os.kill(state["pid"], signal.SIGKILL)
    until_dead(processes)
    assert gpu_sandbox_cli("status", "--name", "killed", check=False).returncode == 1
    assert Path(state["data_dir"]).exists()
    gpu_sandbox_cli("down", "--name", "killed", check=False)
    assert leftovers(environment) == before


def test_a_supervisor_that_hangs_is_killed_by_down(
    gpu_sandbox_cli: Cli, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu_sandbox_cli("up", "--detach", "--name", "hanging")
    state = state_of(environment, "hanging")
    processes = family(state["pid"])
    os.kill(state["pid"], signal.SIGSTOP)
    program = (
        "from gpu_sandbox import supervisor, control_api\n"
        "supervisor._STOP_TIMEOUT = control_api.TIMEOUT = 1\n"
        "supervisor.end('hanging')\n"
    )
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    until_dead(processes)
    assert not Path(state["data_dir"]).exists()


def test_one_that_cannot_start_says_why(gpu_sandbox_cli: Cli, environment: dict[str, str]) -> None:
    reply = subprocess.run(
        [*GPU_SANDBOX, "up", "--detach", "--name", "broken"],
        env=environment | {"AIRFLOW_GPU_SANDBOX_CONTROLPLANE": "/nonexistent"},
        capture_output=True,
        text=True,
    )
    assert reply.returncode == 1
    assert "/nonexistent, which is not an executable file" in reply.stderr


def test_two_side_by_side(gpu_sandbox_factory: Callable[..., SandboxProcess]) -> None:
    first, second = gpu_sandbox_factory(cluster_name="first"), gpu_sandbox_factory(cluster_name="second")
    assert [one.describe()["cluster"] for one in (first, second)] == ["first", "second"]
    for name in ("KUBECONFIG", "AWS_ENDPOINT_URL", "AWS_SECRET_ACCESS_KEY"):
        assert first.env()[name] != second.env()[name]
    first.apply_faults({"boot_seconds": 9})
    assert [one.describe()["faults"]["boot_seconds"] for one in (first, second)] == [9, None]
    first.clear_faults()
    first.stop()
    assert second.describe()["api_server"]


def test_a_sandbox_process_dies_with_the_one_that_started_it() -> None:
    program = """
import time
from gpu_sandbox import SandboxProcess
sandbox = SandboxProcess()
sandbox.start()
print(sandbox._process.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        processes = family(int(process.stdout.readline()))
        process.kill()
    assert len(processes) > 5
    until_dead(processes)


def test_a_sandbox_process_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_GPU_SANDBOX_CONTROLPLANE", "/nonexistent")
    with pytest.raises(ComponentFailed, match="/nonexistent, which is not an executable file"):
        SandboxProcess().start()


def wait_for_line(process: subprocess.Popen[str], start: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith(start):
            return
    raise AssertionError(f"it ended before it said {start!r}")


def run_sleeping_pod(env: dict[str, str]) -> None:
    from kubernetes import client, config

    with contextlib.closing(config.new_client_from_config(env["KUBECONFIG"])) as api:
        core = client.CoreV1Api(api)
        container = {"name": "main", "image": "busybox", "command": ["sleep", "600"]}
        core.create_namespaced_pod("default", {"metadata": {"name": "asleep"}, "spec": {"containers": [container]}})
        deadline = time.monotonic() + 120
        while core.read_namespaced_pod("asleep", "default").status.phase != "Running":
            assert time.monotonic() < deadline, "the pod never ran"
            time.sleep(0.1)
