"""`make bench`: run every measurement, print the table, write build/bench.json and the table in docs/performance.md."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

from kubernetes import client, config

from benchmarks import (
    cold_night,
    gang_ranks,
    gpu_sampling,
    imports,
    large_pool,
    ready_nodes,
    waiting_pods,
    waiting_runs,
)
from benchmarks.figure import Figure, table
from gpu_sandbox import Sandbox

DOCUMENT = Path("docs/performance.md")
REPORT = Path("build/bench.json")
SIDE_BY_SIDE, WHAT_GROWS = "side by side", "what grows"


def main() -> None:
    print("== what a DAG file's imports cost", flush=True)
    figures: list[Figure] = imports.measure()
    print("== what a decision on a large pool takes", flush=True)
    figures += large_pool.measure()
    print("== what runs that wait for one pool ask", flush=True)
    figures += waiting_runs.measure()
    print("== how soon a training of a cold night prints", flush=True)
    figures += cold_night.measure()
    with Sandbox(progress=print, autoscaler="none") as sandbox:
        os.environ.update(sandbox.env())
        api = client.CoreV1Api(config.new_client_from_config(str(sandbox.kubeconfig)))
        print("== how soon allocatable GPUs are heard of", flush=True)
        figures += ready_nodes.measure(api)
        print("== what waiting for a gang costs", flush=True)
        figures += gang_ranks.measure(api)
        print("== what a training's samples cost it", flush=True)
        figures += gpu_sampling.measure(sandbox, api)
        print("== what waiting for pods costs", flush=True)
        waiting, grown = waiting_pods.measure(api)
        figures += waiting
    print("\n".join(table(figures)))
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps([asdict(figure) | {"ratio": figure.ratio} for figure in figures], indent=2) + "\n")
    text = _with_table(DOCUMENT.read_text(), SIDE_BY_SIDE, table(figures))
    DOCUMENT.write_text(_with_table(text, WHAT_GROWS, grown))


def _with_table(text: str, name: str, lines: list[str]) -> str:
    """Put a table between its marks in a document."""
    begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"{DOCUMENT} should have {begin} and {end} once")
    before, _, rest = text.partition(begin)
    return "\n".join([before + begin, *lines, end + rest.partition(end)[2]])


if __name__ == "__main__":
    main()
