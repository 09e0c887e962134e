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
BEGIN, END = "<!-- begin: side by side -->", "<!-- end: side by side -->"


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
        figures += waiting_pods.measure(api)
    print("\n".join(table(figures)))
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps([asdict(figure) | {"ratio": figure.ratio} for figure in figures], indent=2) + "\n")
    DOCUMENT.write_text(_with_table(DOCUMENT.read_text(), table(figures)))


def _with_table(text: str, lines: list[str]) -> str:
    """Put the table between its marks in the document."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"{DOCUMENT} should have {BEGIN} and {END} once")
    before, _, rest = text.partition(BEGIN)
    return "\n".join([before + BEGIN, *lines, END + rest.partition(END)[2]])


if __name__ == "__main__":
    main()
