"""A night of the sandbox's cloud in the web UI: what the page shows while it goes on, and what of it is left.

The other files show recorded nights; this one holds that what they record is what a night leaves.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from gpu_sandbox import Sandbox
from gpu_sandbox.airflow_api import RunStatus, wait_until
from gpu_sandbox.airflow_home import AirflowHome, python_path
from gpu_sandbox.demo_trainings import example_dags
from gpu_sandbox.faults import Stockout
from gpu_sandbox.nodes import Image
from tests.airflow.harness import Airflow
from tests.browser.conftest import REPOSITORY, Person, Visit
from tests.inherited import INHERITED

NIGHT, JANITOR = "nightly_training_eks", "janitor"
PODS = "/api/v1/namespaces/default/pods"
A_DAY = 86_400.0
GOES_ON = frozenset({"running", "deferred"})
TRAINING = """
import pathlib, time

while not pathlib.Path("/dev/shm/end").exists():
    time.sleep(0.2)
pathlib.Path("/airflow/xcom/return.json").write_text('{"accuracy": 1}')
"""


@pytest.fixture(scope="module")
def at_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    """An Airflow with the example DAGs, over a cloud with a dry zone; a training goes on until it is told to end."""
    home = tmp_path_factory.mktemp("night")
    (home / "passwords.json").write_text(json.dumps({"admin": "admin"}))
    app = tmp_path_factory.mktemp("app")
    (app / "train.py").write_text(TRAINING)
    image = Image(pattern="train-digits:*", folder=app, path_prefix=str(Path(sys.executable).parent))
    with Sandbox(images=(image,), boot_seconds=1.0) as sandbox:
        sandbox.faults.add(Stockout(zone="us-west-2a"))
        env = {
            **sandbox.env(),
            "PYTHONPATH": python_path(REPOSITORY),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home / "passwords.json"),
        }
        with AirflowHome(home, Path(example_dags()), env, parallelism=8, inherited=INHERITED) as airflow:
            yield Airflow(airflow, sandbox)


def look(person: Person) -> None:
    """Have the janitor look."""
    run = person.record(JANITOR, {})
    assert person.wait_for_run(JANITOR, run.run_id).state == "success"


def is_told(person: Person, run: RunStatus, task_id: str, words: str) -> bool:
    return any(words in line.event for line in person.log(run.dag_id, run.run_id, task_id))


def end_training(at_home: Airflow) -> None:
    status, found = at_home.sandbox.control_plane.request("GET", f"{PODS}?labelSelector=task_id%3Dtrain")
    assert status == 200, found
    (pod,) = found["items"]
    at_home.run_in(pod["metadata"]["name"], "touch", "/dev/shm/end")


def test_a_night_is_shown_as_it_goes_and_as_it_went(at_home: Airflow, visit: Visit) -> None:
    """Each of its stages lasts until the page has shown it."""
    faults = at_home.sandbox.faults
    faults.boot_seconds = A_DAY
    person = Person(at_home.home.url, "admin")
    for dag_id in (NIGHT, JANITOR):
        person.wait_for_dag(dag_id)
    tab = visit(url=at_home.home.url, clock=True)
    run = person.record(NIGHT, {}, run_id="night+02:00")
    row, card = tab.page.locator(f"[data-run='{NIGHT}/{run.run_id}']"), tab.page.locator("[data-pool='train-gpu']")

    person.wait_for_task(NIGHT, run.run_id, "train-gpu.ensure", states=GOES_ON)
    tab.open()
    expect(row).to_contain_text("booting")
    faults.boot_seconds = None

    person.wait_for_task(NIGHT, run.run_id, "train", states=GOES_ON)
    wait_until(lambda: is_told(person, run, "train", "started on node"), what="the training to run")
    look(person)
    tab.context.clock.fast_forward(76_000)
    expect(row).to_contain_text("working")
    expect(row).to_contain_text("1 node until")
    expect(card).to_contain_text("runs default/train-")
    faults.set_error_rate(1, service="autoscaling")
    end_training(at_home)

    person.wait_for_task(NIGHT, run.run_id, "train-gpu.scale_down", states=GOES_ON)
    tab.context.clock.fast_forward(76_000)
    expect(row).to_contain_text("draining")
    faults.set_error_rate(0, service="autoscaling")

    assert person.wait_for_run(NIGHT, run.run_id).state == "success"
    look(person)
    tab.context.clock.fast_forward(76_000)
    expect(row).to_have_count(0)
    expect(card).not_to_contain_text("runs default/train-")

    usage: Any = person.xcom(NIGHT, run.run_id, "train-gpu.scale_down", key="usage")
    page = tab.open()
    expect(page.locator(f"[data-night='{run.run_id}']")).to_be_visible()
    for phase in ("booting", "working", "idle"):
        bars = page.locator(f"[data-phase={phase}]").evaluate_all("all => all.map(bar => Number(bar.dataset.seconds))")
        assert sum(bars) == pytest.approx(usage["node_seconds"][phase])
    tab.open(f"/dags/{NIGHT}/runs/{quote(run.run_id, safe='')}/plugin/gpu_nodes")
    expect(page.locator("[data-bill='train-gpu.scale_down']")).to_contain_text("1 node")
    (machine,) = usage["timeline"]
    lane = page.locator(f"[data-lane='{machine['node']}']")
    kinds = lane.locator("[data-kind]").evaluate_all("all => all.map(piece => piece.dataset.kind)")
    assert kinds[0] == "booting"
    assert kinds[-1] == "idle"
    assert "working" in kinds[1:-1]
    expect(page.locator("[data-refusal='us-west-2a']").first).to_contain_text("InsufficientInstanceCapacity")
    assert not tab.problems
    person.close()
