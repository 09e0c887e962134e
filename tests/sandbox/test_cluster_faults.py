"""Faults of the cluster's API server, of its Leases, of tokens and drivers: what clients see of each, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import urllib3
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from airflow_gpu_provider import EksGpuPool, GkeGpuPool
from airflow_gpu_provider.clouds.base import platform_for
from airflow_gpu_provider.cluster.api.access import ClusterAccess
from airflow_gpu_provider.cluster.api.async_api import AsyncApi
from airflow_gpu_provider.errors import ClusterUnreachable, CredentialsError
from airflow_gpu_provider.pools import GpuPool
from gpu_sandbox import Sandbox, SandboxProcess
from gpu_sandbox.cli import main
from sandbox.tests.autoscaling import Eks, gpu_pod
from tests.kubeconfig import access_of
from tests.sandbox.running import eventually

NAMESPACES = "api/v1/namespaces"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"


@pytest.fixture(scope="module")
def sandbox(gpu_sandbox_factory: Callable[..., SandboxProcess]) -> SandboxProcess:
    return gpu_sandbox_factory(boot_seconds=0.3, autoscaler="none", stale=0.0)


@pytest.fixture
def fault(sandbox: SandboxProcess) -> Iterator[Callable[..., None]]:
    def tell(*arguments: str) -> None:
        assert main(["fault", *arguments, "--name", sandbox.name]) == 0

    yield tell
    sandbox.clear_faults()


@pytest.fixture
def core(sandbox: SandboxProcess) -> Iterator[client.CoreV1Api]:
    with config.new_client_from_config(sandbox.env()["KUBECONFIG"]) as api:
        api.rest_client.pool_manager.connection_pool_kw["retries"] = False
        yield client.CoreV1Api(api)


def fails_with(core: client.CoreV1Api) -> type[BaseException] | None:
    try:
        core.list_namespace(_request_timeout=0.5)
    except (urllib3.exceptions.HTTPError, ApiException) as error:
        return type(error)
    return None


@contextlib.contextmanager
def meanwhile(act: Callable[[], object]) -> Iterator[threading.Thread]:
    acting = threading.Thread(target=act)
    acting.start()
    yield acting
    acting.join()


def is_met(core: client.CoreV1Api, error: type[BaseException], acting: threading.Thread) -> bool:
    """Whether a request fails so meanwhile. On a busy machine none may be made in time: then the fault comes again."""
    while acting.is_alive():
        if fails_with(core) is error:
            return True
    return False


def test_an_api_server_that_is_down_refuses_connections(core: client.CoreV1Api, fault: Callable[..., None]) -> None:
    def refuses() -> bool:
        with meanwhile(lambda: fault("restart-apiserver", "--down-seconds", "3")) as down:
            return is_met(core, urllib3.exceptions.NewConnectionError, down)

    eventually(refuses)
    eventually(lambda: fails_with(core) is None)


def test_one_that_hangs_answers_nothing_and_then_goes_on(core: client.CoreV1Api, fault: Callable[..., None]) -> None:
    eventually(lambda: fails_with(core) is None)

    def is_silent_and_then_answers() -> bool:
        started = time.monotonic()
        with meanwhile(lambda: fault("hang-apiserver", "--seconds", "3")) as hanging:
            if not is_met(core, urllib3.exceptions.ReadTimeoutError, hanging):
                return False
            core.list_namespace(_request_timeout=120)
            return time.monotonic() - started >= 3

    eventually(is_silent_and_then_answers)


async def test_cut_connections_end_a_watch_and_nothing_else(
    sandbox: SandboxProcess, fault: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    api = AsyncApi(access_of(sandbox.env()["KUBECONFIG"]))
    watched = asyncio.Event()

    async def watch() -> None:
        async for _ in api.watch(NAMESPACES, silence=600):
            watched.set()

    watching = asyncio.create_task(watch())
    try:
        await asyncio.wait_for(watched.wait(), 120)
        await asyncio.to_thread(fault, "cut-connections")
        with pytest.raises(ClusterUnreachable):
            await asyncio.wait_for(watching, 120)
        assert int(capsys.readouterr().out) > 0
        assert await api.get(NAMESPACES)
    finally:
        watching.cancel()
        await api.close()


def test_another_writer_makes_writes_of_leases_conflict(sandbox: SandboxProcess, fault: Callable[..., None]) -> None:
    cluster = Eks(sandbox)
    lease = cluster.call("POST", LEASES, {"metadata": {"name": "ours"}, "spec": {"holderIdentity": "us"}})
    path = f"{LEASES}/ours"
    fault("lease-conflicts", "--rate", "1")
    version = lease["metadata"]["resourceVersion"]
    eventually(lambda: cluster.call("GET", path)["metadata"]["resourceVersion"] != version)
    with pytest.raises(ApiException, match="Conflict"):
        cluster.call("PUT", path, lease | {"spec": {"holderIdentity": "us, still"}})


def test_without_a_driver_gpus_are_not_allocatable_until_it_is_there(
    sandbox: SandboxProcess, fault: Callable[..., None]
) -> None:
    eks = Eks(sandbox)
    eks.install_device_plugin()
    fault("driver-never-ready")
    eks.create_group("driverless", scalingConfig={"minSize": 0, "maxSize": 1, "desiredSize": 1})
    eks.create(gpu_pod("train", nodeSelector={"role": "driverless"}))

    def gpus() -> list[str]:
        return [node["status"]["allocatable"].get("nvidia.com/gpu", "0") for node in eks.gpu_nodes()]

    plugin = eventually(lambda: plugin_pods(eks))[0]["metadata"]
    log = {"name": plugin["name"], "namespace": plugin["namespace"]}
    eventually(lambda: "Failed to initialize NVML" in eks.core.read_namespaced_pod_log(**log))
    assert gpus() == ["0"]
    assert eks.phase("train") == "Pending"
    sandbox.clear_faults()
    eks.until_running("train")
    assert gpus() == ["1"]
    eks.delete_pods()
    eventually(lambda: eks.described("driverless")["status"] == "ACTIVE")
    eks.delete_group("driverless")
    eventually(lambda: not eks.gpu_nodes())


def plugin_pods(eks: Eks) -> list[dict[str, Any]]:
    """Those that run on GPU nodes."""
    nodes = {node["metadata"]["name"] for node in eks.gpu_nodes()}
    pods = eks.call("GET", "/api/v1/pods?fieldSelector=status.phase%3DRunning")["items"]
    return [pod for pod in pods if "device-plugin" in pod["metadata"]["name"] and pod["spec"]["nodeName"] in nodes]


# A GKE of its own for this: by day, test_platform_gke.py's TestAccess with a manual clock.
@pytest.mark.parametrize("which", ["gpu_sandbox", pytest.param("gke_sandbox", marks=pytest.mark.nightly)])
def test_tokens_are_renewed_in_a_wait_that_is_longer_than_their_life(
    which: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox: Sandbox = request.getfixturevalue(which)
    for name, value in sandbox.env().items():
        monkeypatch.setenv(name, value)
    access = platform_for(pool_of(sandbox)).cluster_access()
    assert access.token is not None
    old = access.token()
    reader = client.CoreV1Api(access.api_client())
    reader.list_namespace()
    sandbox.faults.token_seconds = 5.0
    try:
        asyncio.run(reads_until_refused(access, reader, old))
    finally:
        sandbox.faults.clear()


async def reads_until_refused(access: ClusterAccess, reader: client.CoreV1Api, old: str) -> None:
    """Go on reading, by both kinds of client, until the first token is refused: then they have had others."""
    api = AsyncApi(access)
    first_only = AsyncApi(ClusterAccess(server=access.server, ca_data=access.ca_data, token=lambda: old))
    deadline = time.monotonic() + 240
    try:
        while not await refused(first_only):
            assert time.monotonic() < deadline, "the old token is still taken"
            assert await api.get(NAMESPACES)
            await asyncio.to_thread(reader.list_namespace)
            await asyncio.sleep(1)
        assert await api.get(NAMESPACES)
        await asyncio.to_thread(reader.list_namespace)
    finally:
        await first_only.close()
        await api.close()


async def refused(api: AsyncApi) -> bool:
    try:
        await api.get(NAMESPACES)
    except CredentialsError:
        return True
    return False


def pool_of(sandbox: Sandbox) -> GpuPool:
    fields: dict[str, Any] = {"name": "train", "cluster_name": sandbox.cluster_name, "max_runtime": timedelta(hours=1)}
    if sandbox.platform == "eks":
        return EksGpuPool(region=sandbox.region, instance_types=("g6.xlarge",), max_nodes=1, **fields)
    return GkeGpuPool(
        project_id=sandbox.google.project_id,
        location=sandbox.google.location,
        machine_types=("g2-standard-4",),
        max_nodes=1,
        **fields,
    )
