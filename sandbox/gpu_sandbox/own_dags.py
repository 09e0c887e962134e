"""`gpu-sandbox airflow`: a real Airflow over a folder of DAGs, whose tasks talk to a running sandbox."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from gpu_sandbox.airflow_home import AirflowHome

_SHOWN = ("AIRFLOW", "PYTHONPATH")


def run(dags: Path, home: Path, env: Mapping[str, str], *, schedules: bool, say: Callable[[str], None]) -> None:
    """Run it until interrupted. What `airflow` commands need is in `home`, as a file for a shell to read."""
    with AirflowHome(home, dags, env, schedules=schedules) as airflow:
        file = airflow.home / "airflow.env"
        file.touch(mode=0o600)
        file.write_text(_exports({k: v for k, v in airflow.environment.items() if k.startswith(_SHOWN) or k in env}))
        say(f"Airflow is at {airflow.url}; it asks for no log-in. Ctrl-C ends it, and not the sandbox.")
        say(f"In another shell: . {shlex.quote(str(file))}; airflow gpu status; airflow dags trigger DAG")
        while True:
            airflow.revive(lambda component, what: say(f"{what}\nAirflow's {component} is started again."))
            time.sleep(1)


def _exports(variables: Mapping[str, str]) -> str:
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
