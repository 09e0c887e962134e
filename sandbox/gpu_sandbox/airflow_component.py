"""`airflow scheduler` or `airflow dag-processor`, with what its children would otherwise import again.

Each leg of a task, and each parse of a DAG file, is a process forked from one of these two. Importing the Kubernetes
provider there is a second of pure CPU; here it is done once, and the children inherit it.

Run as a program: `python -m gpu_sandbox.airflow_component NAMES scheduler --skip-serve-logs`; NAMES are separated by
commas, each a module or, after a colon, a name in it, as `pkgutil.resolve_name` takes them.
"""

from __future__ import annotations

import pkgutil
import runpy
import sys


def main(names: str, arguments: list[str]) -> None:
    for name in filter(None, names.split(",")):
        pkgutil.resolve_name(name)
    sys.argv = ["airflow", *arguments]
    runpy.run_module("airflow", run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
