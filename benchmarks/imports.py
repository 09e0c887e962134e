"""What parsing a DAG file costs: our spec, Ensure and sensor on top of `import airflow.sdk`, in fresh processes."""

from __future__ import annotations

import statistics
import subprocess
import sys

from benchmarks.figure import Figure

OURS = "from airflow_gpu_provider import EksGpuPool, EnsureGpuPoolOperator, ScaleDownSensor"
PEER = "import airflow.sdk; from airflow.sdk import BaseOperator, BaseSensorOperator"
ROUNDS = 7


def measure() -> list[Figure]:
    """Measure in turns, so that what disturbs the machine disturbs both."""
    ours, peer = [], []
    for _ in range(ROUNDS):
        ours.append(_cpu_seconds(OURS))
        peer.append(_cpu_seconds(PEER))
    name = "import of spec, Ensure and sensor; peer: airflow.sdk's base operators"
    return [Figure(name=name, unit="CPU s", ours=statistics.median(ours), peer=statistics.median(peer), n=ROUNDS)]


def _cpu_seconds(program: str) -> float:
    timed = f"import time\n{program}\nprint(time.process_time())"
    done = subprocess.run([sys.executable, "-c", timed], capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])
