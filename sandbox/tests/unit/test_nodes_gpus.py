"""GPUs of nodes: identity, allocation, and what nvidia-smi prints."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_sandbox.faults import GpuUse
from gpu_sandbox.nodes import nvidia_smi
from gpu_sandbox.nodes.gpus import AllocationError, Gpu, Inventory, of_node, visible
from gpu_sandbox.nodes.spec import NodeSpec

NODE = NodeSpec(name="n", gpus=4, gpu_product="NVIDIA-A10G", gpu_memory_mib=23028)


def test_simulated_gpus_are_the_nodes_own_and_always_the_same() -> None:
    gpus = of_node(NODE, [])
    assert gpus == of_node(NODE, [])
    other = of_node(NodeSpec(name="m", gpus=4), [])
    assert len({g.uuid for g in gpus} | {g.uuid for g in other}) == 8
    assert gpus[0].name == "NVIDIA A10G"
    assert [g.cuda_name for g in gpus] == ["0", "1", "2", "3"]


def test_real_gpus_are_shared_in_turn_and_go_by_their_uuid() -> None:
    real = [Gpu(index=i, uuid=f"GPU-{i}", name="NVIDIA L4", memory_mib=23034, real=True) for i in range(3)]
    assert [g.cuda_name for g in of_node(NODE, real)] == ["GPU-0", "GPU-1", "GPU-2", "GPU-0"]


def test_allocation_refuses_more_than_is_free_in_the_kubelets_words() -> None:
    inventory = Inventory(of_node(NODE, []))
    inventory.allocate("pod", "main", 3, healthy=True)
    with pytest.raises(AllocationError, match=r"for nvidia.com/gpu. Requested: 2, Available: 1, which is unexpected"):
        inventory.allocate("late", "main", 2, healthy=True)
    inventory.release("pod")
    inventory.allocate("late", "main", 4, healthy=True)
    with pytest.raises(AllocationError, match="Available: 0"):
        Inventory(of_node(NODE, [])).allocate("pod", "main", 1, healthy=False)


def test_a_plugin_that_shares_gpus_gives_one_to_a_container() -> None:
    inventory = Inventory(of_node(NODE, []), one_gpu_only="at most 1 nvidia.com/gpu")
    inventory.allocate("pod", "main", 1, healthy=True)
    with pytest.raises(AllocationError, match=r"desc = at most 1 nvidia.com/gpu, which is unexpected"):
        inventory.allocate("late", "main", 2, healthy=True)


def test_an_init_container_uses_what_its_pod_holds() -> None:
    inventory = Inventory(of_node(NODE, []))
    inventory.allocate("pod", "main", 1, healthy=True)
    assert inventory.share("pod", "init", 2) == 1
    assert inventory.held_by("pod", "init") == inventory.held_by("pod", "main")


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4), st.booleans()), max_size=30))
def test_no_gpu_is_held_twice(steps: list[tuple[int, int, bool]]) -> None:
    inventory = Inventory(of_node(NODE, []))
    held: dict[str, int] = {}
    for pod, count, release in steps:
        name = f"pod-{pod}"
        if release:
            inventory.release(name)
            held.pop(name, None)
        elif name not in held:
            try:
                inventory.allocate(name, "main", count, healthy=True)
            except AllocationError:
                assert sum(held.values()) + count > 4
            else:
                held[name] = count
        uuids = [gpu.uuid for owner in held for gpu in inventory.held_by(owner, "main")]
        assert len(uuids) == len(set(uuids)) == sum(held.values())


@pytest.mark.parametrize(
    ("wanted", "count"), [("all", 4), ("", 0), ("void", 0), ("none", 0), ("1", 1), ("0,3", 2), ("GPU-unknown", 0)]
)
def test_visible_devices(wanted: str, count: int) -> None:
    assert len(visible(of_node(NODE, []), wanted)) == count


CARDS = [gpu.to_json() for gpu in of_node(NODE, [])[:2]]


def test_nvidia_smi_lists() -> None:
    text, code = nvidia_smi.main(["-L"], CARDS)
    assert code == 0
    assert text.splitlines()[1] == f"GPU 1: NVIDIA A10G (UUID: {CARDS[1]['uuid']})"


@pytest.mark.parametrize(
    ("style", "text"),
    [
        ("csv,noheader", "0, 23028 MiB\n1, 23028 MiB\n"),
        ("csv,noheader,nounits", "0, 23028\n1, 23028\n"),
        ("csv", "index, memory.total [MiB]\n0, 23028 MiB\n1, 23028 MiB\n"),
    ],
)
def test_nvidia_smi_answers_queries(style: str, text: str) -> None:
    assert nvidia_smi.main(["--query-gpu=index,memory.total", f"--format={style}"], CARDS) == (text, 0)


def test_nvidia_smi_shows_the_last_use_that_is_meant_for_a_gpu() -> None:
    cards = [{**CARDS[0], "node": "n", "pod": "train-1"}, {**CARDS[1], "node": "n", "pod": "other"}]
    hangs = GpuUse(utilization=100, power=17, memory=900, pod="train-*")
    uses = [asdict(use) for use in (GpuUse(utilization=50), hangs, GpuUse(utilization=9, node="another"))]
    query = ["--query-gpu=utilization.gpu,memory.used,power.draw,power.limit", "--format=csv,noheader,nounits"]
    assert nvidia_smi.main(query, cards, uses) == ("100, 900, 17.00, 72.00\n50, 1, 16.00, 72.00\n", 0)
    assert "100%" in nvidia_smi.main([], cards, uses)[0]


def test_nvidia_smi_refuses_what_it_does_not_know() -> None:
    assert nvidia_smi.main(["--query-gpu=colour"], CARDS) == ('Field "colour" is not a valid field to query.\n', 2)
    assert nvidia_smi.main(["--reset"], CARDS)[1] == 2
    assert nvidia_smi.main([], []) == ("No devices were found\n", 6)


def test_nvidia_smis_table_is_straight() -> None:
    text, code = nvidia_smi.main([], CARDS)
    assert code == 0
    widths = {len(line) for line in text.splitlines()[1:] if line}
    assert widths == {91}
