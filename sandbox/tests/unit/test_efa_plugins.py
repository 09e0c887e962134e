"""What a node says of its EFA interfaces while EFA's device plugin comes and goes."""

from __future__ import annotations

from gpu_sandbox.nodes.efa import RESOURCE, EfaPlugins


def test_interfaces_are_there_while_a_plugin_runs() -> None:
    node, plugin = EfaPlugins(4), object()
    assert node.allocatable() == {"hugepages-2Mi": "10256Mi"}, "the driver is the image's, the plugin is not"
    node.started(plugin)
    assert node.allocatable()[RESOURCE] == "4"
    assert node.ended(plugin)
    assert (node.capacity()[RESOURCE], node.allocatable()[RESOURCE]) == ("4", "0")
    assert not node.ended(plugin)


def test_a_node_without_any_says_nothing_of_them() -> None:
    node = EfaPlugins(0)
    node.started(object())
    assert node.allocatable() == {}
