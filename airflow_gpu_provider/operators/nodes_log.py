"""What a task's log says of the nodes that it got: which, where none could be had, and how long each phase took."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_gpu_provider.scaling.hard_to_get import tried_in_words


def log_nodes(log: Any, pool_name: str, result: Mapping[str, Any]) -> None:
    """Log EnsureGpuPoolOperator's result."""
    names = ", ".join(f"{node['name']}{_type_and_zone(node)}" for node in result["nodes"])
    log.info("Pool %s has its nodes: %s", pool_name, names or "none yet, they come when pods do")
    got, wanted = result.get("got", 0), result.get("wanted", 0)
    if got < wanted:
        log.warning("Pool %s gave %d of the %d nodes wanted; the run goes on.", pool_name, got, wanted)
    for each in result.get("tried", ()):
        where = f"{each['instance_type']} {each['capacity_type']} in {each['zone']}"
        log.info("  no %s, %s: %s", where, tried_in_words(each["times"]), each["why"])
    for phase in result["timeline"]:
        log.info("  %-18s %6.1f s", phase["phase"], phase["seconds"])


def _type_and_zone(node: Mapping[str, Any]) -> str:
    """Return "" for a node outside of a cloud, which has neither."""
    return f" ({node['instance_type']} in {node['zone']})" if node["instance_type"] and node["zone"] else ""
