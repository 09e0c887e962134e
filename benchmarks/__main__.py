"""`make bench`: run every measurement, print the table, write build/bench.json and the table in docs/performance.md."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

from kubernetes import client, config

from airflow_gpu_provider.sandbox import Sandbox
from benchmarks import imports, ready_nodes, waiting_pods
from benchmarks.figure import Figure, table

DOCUMENT = Path("docs/performance.md")
REPORT = Path("build/bench.json")
BEGIN, END = "<!-- begin of the table -->", "<!-- end of the table -->"


def main() -> None:
    print("== what a DAG file's imports cost", flush=True)
    figures: list[Figure] = imports.measure()
    with Sandbox(progress=print) as sandbox:
        os.environ.update(sandbox.env())
        api = client.CoreV1Api(config.new_client_from_config(str(sandbox.kubeconfig)))
        print("== how soon allocatable GPUs are heard of", flush=True)
        figures += ready_nodes.measure(api)
        print("== what waiting for pods costs", flush=True)
        figures += waiting_pods.measure(api)
    print("\n".join(table(figures)))
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps([asdict(figure) | {"ratio": figure.ratio} for figure in figures], indent=2) + "\n")
    text = DOCUMENT.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    DOCUMENT.write_text("\n".join([before + BEGIN, *table(figures), END + after]))


if __name__ == "__main__":
    main()
