"""`airflow scheduler` or `airflow dag-processor`, with the modules pre-imported that its children would otherwise
import again.

Each leg of a task, and each parse of a DAG file, is a process forked from one of these two. Importing the Kubernetes
provider there is a second of pure CPU; here it is done once, and the children inherit it.

Run as a program: `python -m gpu_sandbox.airflow_component scheduler --skip-serve-logs`.
"""

from __future__ import annotations

import runpy
import sys
from importlib import import_module

# By name: the sandbox does not depend on the package that it serves.
INHERITED = (
    "airflow.providers.amazon.aws.hooks.base_aws",
    "airflow.providers.cncf.kubernetes.operators.pod",
    "airflow_gpu_provider.block",
    "airflow_gpu_provider.operators.gpu_pod",
    "airflow_gpu_provider.clouds.aws.platform",
)


def main(arguments: list[str]) -> None:
    for module in INHERITED:
        import_module(module)
    sys.argv = ["airflow", *arguments]
    runpy.run_module("airflow", run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
