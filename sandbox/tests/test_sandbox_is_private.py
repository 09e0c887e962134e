"""Nobody but this user of this machine can speak to a sandbox: each port is on loopback, and asks who calls."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import urlsplit

import psutil
import pytest
import requests
import yaml

from gpu_sandbox import Sandbox, SandboxProcess, supervisor

pytestmark = pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning")
LOOPBACK = ("127.0.0.1", "::1")


@pytest.fixture(scope="module", params=["eks", "gke"])
def sandbox(request: pytest.FixtureRequest) -> Iterator[SandboxProcess]:
    with SandboxProcess(platform=request.param) as sandbox:
        yield sandbox


def listening(sandbox: SandboxProcess) -> dict[int, tuple[str, str]]:
    """The ports of all its processes: the address, and whose it is."""
    owner = psutil.Process(supervisor.find(sandbox.name).pid)
    return {
        socket.laddr.port: (socket.laddr.ip, process.name())
        for process in (owner, *owner.children(recursive=True))
        for socket in process.net_connections("inet")
        if socket.status == psutil.CONN_LISTEN
    }


def endpoints(sandbox: SandboxProcess) -> dict[str, str]:
    """What it tells its user of itself."""
    env = sandbox.env()
    with open(env["KUBECONFIG"]) as file:
        api_server = yaml.safe_load(file)["clusters"][0]["cluster"]["server"]
    cloud = env.get("AWS_ENDPOINT_URL") or env["GPU_SANDBOX_GOOGLE_ENDPOINT"]
    return {"API server": api_server, "cloud": cloud, "control API": env["GPU_SANDBOX_URL"]}


def answers(port: int) -> Iterator[requests.Response]:
    """What a stranger gets, by HTTP and HTTPS; hanging up on them is an answer, too."""
    for scheme in ("http", "https"):
        for path in ("/", "/pods", "/metrics", "/v3/kv/range", "/status"):
            try:
                yield requests.get(f"{scheme}://127.0.0.1:{port}{path}", verify=False, timeout=120)
            except requests.RequestException:
                continue


def test_every_port_is_on_loopback(sandbox: SandboxProcess) -> None:
    ports = listening(sandbox)
    assert {urlsplit(url).port for url in endpoints(sandbox).values()} <= ports.keys()
    assert {port: where for port, where in ports.items() if where[0] not in LOOPBACK} == {}


@pytest.mark.against_schema
def test_a_stranger_is_turned_away_at_every_port(sandbox: SandboxProcess) -> None:
    answered = [
        (process, answer.url, answer.status_code)
        for port, (_, process) in listening(sandbox).items()
        for answer in answers(port)
    ]
    assert {status for _, _, status in answered} >= {401}
    assert [each for each in answered if each[2] < 400] == []


def test_each_endpoint_says_that_it_does_not_know_who_calls(sandbox: SandboxProcess) -> None:
    where = endpoints(sandbox)
    refusals = {
        "API server": requests.get(f"{where['API server']}/api/v1/pods", verify=False, timeout=120),
        "control API": requests.get(f"{where['control API']}/env", timeout=120),
        "control API with a wrong token": requests.get(
            f"{where['control API']}/env", headers={"Authorization": "Bearer wrong"}, timeout=120
        ),
    }
    cloud = where["cloud"]
    if "AWS_ENDPOINT_URL" in sandbox.env():
        refusals["cloud"] = requests.get(f"{cloud}/clusters", timeout=120)
        signed = "AWS4-HMAC-SHA256 Credential=AKIAWRONG/20260101/us-west-2/eks/aws4_request, SignedHeaders=host"
        wrong = {"Authorization": f"{signed}, Signature=00"}
    else:
        pools = f"{cloud}/v1/projects/sandbox-project/locations/us-central1/clusters"
        refusals["cloud"] = requests.get(pools, timeout=120)
        cloud, wrong = pools.removesuffix("/clusters"), {"Authorization": "Bearer ya29.wrong"}
    refusals["cloud with a wrong credential"] = requests.get(f"{cloud}/clusters", headers=wrong, timeout=120)
    statuses = {name: answer.status_code for name, answer in refusals.items()}
    assert set(statuses.values()) <= {401, 403}, statuses


def test_no_two_sandboxes_share_a_credential(sandbox: SandboxProcess, gpu_sandbox: Sandbox) -> None:
    assert len(credentials(sandbox)) >= 3
    assert not credentials(sandbox) & credentials(gpu_sandbox)


def credentials(sandbox: SandboxProcess | Sandbox) -> set[str]:
    env = sandbox.env()
    found = {env["GPU_SANDBOX_TOKEN"]}
    with open(env["KUBECONFIG"]) as file:
        found |= {user["user"]["client-key-data"] for user in yaml.safe_load(file)["users"]}
    if "AWS_SECRET_ACCESS_KEY" in env:
        return found | {env["AWS_SECRET_ACCESS_KEY"]}
    with open(env["GOOGLE_APPLICATION_CREDENTIALS"]) as file:
        return found | {json.load(file)["private_key"]}
