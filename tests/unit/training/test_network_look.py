"""What NCCL says of its network, and who is told that it trains over TCP on machines that have better."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_gpu_provider.errors import ClusterUnreachable
from airflow_gpu_provider.training.log.object_logs import NetworkLook, ObjectLogs, is_on_sockets, on_sockets_in_words
from tests.unit.training.test_gang_wait import WAIT

SOCKET = "train-0:482:482 [0] NCCL INFO Using network Socket"


@pytest.mark.parametrize(
    "line",
    [
        SOCKET,
        f"[rank0]: {SOCKET}",
        "train-0:152:386 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0",
    ],
)
def test_lines_that_say_it_uses_sockets(line: str) -> None:
    assert is_on_sockets(line)


@pytest.mark.parametrize(
    "line",
    [
        "train-0:172:172 [0] NCCL INFO Using network Libfabric",
        "train-0:172:172 [0] NCCL INFO Using network AWS Libfabric",
        "train-0:482:482 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.1.5<0>",  # its interfaces, whatever it uses
        "train-0:482:482 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/AWS Libfabric/0",
        "Using network Socket",
    ],
)
def test_lines_that_say_something_else(line: str) -> None:
    assert not is_on_sockets(line)


@pytest.mark.parametrize(
    ("instance_type", "says"),
    [
        ("p4d.24xlarge", "p4d.24xlarge has up to 4 EFA interfaces"),
        ("g6.8xlarge", "g6.8xlarge has up to 1 EFA interface:"),
        ("a3-megagpu-8g", "a3-megagpu-8g has GPUDirect-TCPXO"),
        ("g6.xlarge", ""),
        ("g2-standard-4", ""),
        ("", ""),
    ],
)
def test_only_of_machines_that_have_better(instance_type: str, says: str) -> None:
    told = on_sockets_in_words(instance_type)
    assert says in told
    assert bool(told) == bool(says)


class Nodes:
    """A cluster whose nodes have these types; None: it does not answer. It counts the requests."""

    def __init__(self, types: Mapping[str, str] | None) -> None:
        self.types, self.asked = types, 0

    async def get(self, path: str, **_: str) -> Any:
        self.asked += 1
        if self.types is None:
            raise ClusterUnreachable("The API server does not answer.", "Wait.")
        labels = {"node.kubernetes.io/instance-type": self.types[path.removeprefix("api/v1/nodes/")]}
        return {"metadata": {"labels": labels}}


async def heard(nodes: Nodes, *lines: str, told: str = "") -> tuple[NetworkLook, list[str]]:
    said: list[str] = []
    look = NetworkLook(nodes, lambda level, form, *args: said.append(form % args), told)  # type: ignore[arg-type]
    for line in lines:
        look.hear(line, "n-0")
    await look.end()
    return look, said


async def test_told_once_whatever_ranks_and_lines_say_it() -> None:
    nodes = Nodes({"n-0": "p5.48xlarge"})
    look, said = await heard(nodes, "step 1", SOCKET, SOCKET, SOCKET)
    assert said == [look.warning]
    assert "p5.48xlarge has up to 32 EFA interfaces" in look.warning
    assert nodes.asked == 1


async def test_who_goes_on_does_not_tell_again() -> None:
    nodes = Nodes({"n-0": "p5.48xlarge"})
    look, said = await heard(nodes, SOCKET, told="NCCL uses NET/Socket")
    assert (look.warning, said, nodes.asked) == ("NCCL uses NET/Socket", [], 0)


@pytest.mark.parametrize("types", [{"n-0": "g6.xlarge"}, None])
async def test_nothing_is_told_of_other_machines_or_by_a_cluster_that_does_not_answer(types: Any) -> None:
    look, said = await heard(Nodes(types), SOCKET)
    assert (look.warning, said) == ("", [])


async def test_it_travels_with_how_far_the_log_is_written() -> None:
    api: Any = SimpleNamespace(get=Nodes({}).get)
    async with ObjectLogs(api, WAIT, {"containers": [], "network": "NCCL uses NET/Socket"}, print) as logs:
        assert logs.rest()["network"] == (await logs.safe_rest())["network"] == "NCCL uses NET/Socket"
