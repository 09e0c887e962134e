"""`gpu-sandbox demo`: one night's training from zero GPUs and back to zero, on this machine, shown live.

The sandbox and a whole Airflow are started, the example DAG is triggered, what happens is shown while it
happens, and a report is printed and written. Everything that was started is stopped, Ctrl-C included.
"""

from __future__ import annotations

import contextlib
import json
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from gpu_sandbox.airflow_api import AirflowApiError, RunStatus
from gpu_sandbox.airflow_home import AirflowHome, AirflowNotHealthy, python_path
from gpu_sandbox.aws import AwsTimings
from gpu_sandbox.demo_journal import Journal
from gpu_sandbox.demo_report import Report, make_report, render
from gpu_sandbox.demo_spot_loss import SpotLoss
from gpu_sandbox.demo_trainings import INHERITED, TRAININGS, Training, claim_checkpoints, example_dags
from gpu_sandbox.demo_ui import MORE_DAGS, stay
from gpu_sandbox.demo_watchers import AirflowWatch, CloudWatch, ClusterWatch
from gpu_sandbox.errors import Interrupted, SandboxError
from gpu_sandbox.faults import Stockout
from gpu_sandbox.leftovers import look_for_leftovers
from gpu_sandbox.live_view import shown_on
from gpu_sandbox.sandbox import SYSTEM_NODE, Sandbox

TRAIN_TASK = "train"
RELEASE_TASK = "scale_down"
SPOT_LOST_AFTER = "round 05/"
"""The training's line after which the machine is reclaimed: the first with a checkpoint, for it may be seen late."""
SPOT_NOTICE = 2.0
"""Seconds from its notice to the machine's end; two minutes in AWS, by when the training would be over."""
INTERRUPTED = 130
_FAULTS = "stockout:ZONE[:INSTANCE_TYPE], train-fails, spot-lost"


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What goes wrong in the demonstrated night."""

    names: tuple[str, ...] = ()
    training: Training = TRAININGS["one-node"]
    stockouts: tuple[Stockout, ...] = ()
    train_fails: bool = False
    spot_lost: bool = False

    @classmethod
    def parse(cls, faults: Sequence[str], training: str = "one-node") -> Scenario:
        """Read faults, `stockout:ZONE[:INSTANCE_TYPE]` among them; ValueError names what cannot be shown."""
        if training not in TRAININGS:
            raise ValueError(f"unknown demonstration {training!r}; known: {', '.join(TRAININGS)}")
        stockouts = []
        for fault in faults:
            match fault.split(":"):
                case ["stockout", zone]:
                    stockouts.append(Stockout(zone=zone))
                case ["stockout", zone, instance_type]:
                    stockouts.append(Stockout(zone=zone or None, instance_type=instance_type))
                case ["train-fails"]:
                    pass
                case ["spot-lost"] if TRAININGS[training].on_spot:
                    pass
                case ["spot-lost"]:
                    on_spot = ", ".join(name for name, each in TRAININGS.items() if each.on_spot)
                    raise ValueError(f"spot-lost: {training} uses no spot machines; these do: {on_spot}")
                case _:
                    raise ValueError(f"unknown fault {fault!r}; known: {_FAULTS}")
        return cls(
            names=tuple(faults),
            training=TRAININGS[training],
            stockouts=tuple(stockouts),
            train_fails="train-fails" in faults,
            spot_lost="spot-lost" in faults,
        )

    @property
    def expected_state(self) -> str:
        return "failed" if self.train_fails else "success"


def run(
    *,
    training: str = "one-node",
    faults: Sequence[str] = (),
    report: Path,
    console: Console | None = None,
    ui: bool = False,
) -> int:
    """Show one night of a training of TRAININGS; return the process's exit status.

    0: the run has the expected state and nothing is left. 1: otherwise, or the night could not be shown. 2: an unknown
    training or fault. 130: Ctrl-C. `report` is the JSON file to write. With `ui` Airflow stays up after the night,
    until Ctrl-C.
    """
    console = console or Console()
    try:
        scenario = Scenario.parse(faults, training)
    except ValueError as error:
        console.print(str(error), markup=False, soft_wrap=True)
        return 2
    report.unlink(missing_ok=True)
    journal = Journal()
    with _one_interrupt():
        try:
            made = _Night(scenario, console, journal).watch(lambda made: _tell(made, report, console), stays=ui)
        except KeyboardInterrupt:
            console.print("Interrupted; everything that was started is stopped.")
            return INTERRUPTED
        except (AirflowApiError, AirflowNotHealthy, SandboxError) as error:
            console.print(f"The night could not be shown: {error}", markup=False, soft_wrap=True)
            return 1
    return 0 if made.good else 1


def _tell(made: Report, report: Path, console: Console) -> None:
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(json.dumps(made.as_json(), indent=2) + "\n")
    console.print(render(made), markup=False, highlight=False, soft_wrap=True)
    console.print(f"The report is in {report}.", markup=False)


class _Night:
    def __init__(self, scenario: Scenario, console: Console, journal: Journal) -> None:
        self._scenario = scenario
        self._console = console
        self._journal = journal

    def watch(self, tell: Callable[[Report], None], *, stays: bool) -> Report:
        """Start everything, watch the run to its end, and stop everything; `tell` takes the report.

        With `stays` everything keeps running until Ctrl-C after the report.
        """
        with contextlib.ExitStack() as stack:
            screen = stack.enter_context(contextlib.ExitStack())
            screen.enter_context(shown_on(self._console, self._journal, title=self._title))
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpu-demo-")))
            with self._stage("sandbox up"):
                sandbox = stack.enter_context(self._sandbox())
            if self._scenario.training.shares_checkpoints:
                claim_checkpoints(sandbox, folder / "checkpoints")
            if self._scenario.spot_lost:
                SpotLoss(sandbox, self._journal, after=SPOT_LOST_AFTER)
            with self._stage("Airflow up"):
                more = MORE_DAGS if stays else ()
                airflow = stack.enter_context(self._airflow(sandbox, folder, more))
            with contextlib.ExitStack() as watches:  # they end before what they watch
                made = self._night(sandbox, airflow, watches)
            if stays:
                screen.close()
                tell(made)
                self._stay(sandbox, airflow)
                return made
        tell(made)
        return made

    def _stay(self, sandbox: Sandbox, airflow: AirflowHome) -> None:
        def say(line: str) -> None:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

        with contextlib.suppress(KeyboardInterrupt):
            stay(airflow, sandbox.faults, self._scenario.training, sandbox.zones[0], say)
        say("Ending all that was started.")

    @property
    def _title(self) -> str:
        return " ".join([self._dag_id, *(f"[{name}]" for name in self._scenario.names)])

    def _night(self, sandbox: Sandbox, airflow: AirflowHome, watches: contextlib.ExitStack) -> Report:
        cluster = ClusterWatch(sandbox.kubeconfig, self._journal, ordinary_nodes=frozenset({SYSTEM_NODE}))
        watches.callback(cluster.stop)
        cloud = CloudWatch(sandbox.aws, self._journal)
        watches.callback(cloud.stop)
        with self._stage("DAG parsed"):
            airflow.api.wait_for_dag(self._dag_id)
        dag_run = airflow.api.trigger(
            self._dag_id, conf=self._scenario.training.run_conf(fails=self._scenario.train_fails)
        )
        self._journal.write("run", dag_run.run_id, "triggered")
        watch = AirflowWatch(airflow.api, dag_run, airflow.home / "logs", self._journal)
        try:
            ended = airflow.api.wait_for_run(self._dag_id, dag_run.run_id)
        finally:
            watch.stop()
            cloud.stop()
        return make_report(
            self._journal.entries,
            run_state=ended.state,
            expected_state=self._scenario.expected_state,
            accuracy=_accuracy(airflow, dag_run),
            leftovers=look_for_leftovers(sandbox),
            kubernetes_version=sandbox.control_plane.version,
            faults=self._scenario.names,
            train_task=TRAIN_TASK,
            release_task=RELEASE_TASK,
            nodes=self._scenario.training.nodes,
        )

    @property
    def _dag_id(self) -> str:
        return self._scenario.training.dag_id

    def _sandbox(self) -> Sandbox:
        sandbox = Sandbox(
            images=(self._scenario.training.image(),),
            timings=AwsTimings(spot_notice=SPOT_NOTICE),
            progress=lambda line: self._journal.write("stage", "sandbox", line),
        )
        for stockout in self._scenario.stockouts:
            sandbox.faults.add(stockout)
        return sandbox

    def _airflow(self, sandbox: Sandbox, folder: Path, more: Sequence[str]) -> AirflowHome:
        dags = folder / "dags"
        dags.mkdir(parents=True)
        # No others: they import providers' operators, seconds of CPU each, or are of another platform.
        for name in (self._dag_id, *more):
            (dags / f"{name}.py").symlink_to(example_dags() / f"{name}.py")
        env = sandbox.env() | {"PYTHONPATH": python_path(_REPOSITORY)}
        return AirflowHome(folder, dags, env, inherited=INHERITED)

    @contextlib.contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        begun = time.monotonic()
        self._journal.write("stage", name, "begins")
        yield
        self._journal.write("stage", name, f"took {time.monotonic() - begun:.2f} s")


_REPOSITORY = Path(__file__).parents[2]


def _accuracy(airflow: AirflowHome, run: RunStatus) -> float | None:
    for task in airflow.api.tasks(run.dag_id, run.run_id):
        if task.task_id.rpartition(".")[2] == TRAIN_TASK and task.state == "success":
            try:
                return float(airflow.api.xcom(run.dag_id, run.run_id, task.task_id)["accuracy"])
            except AirflowApiError:
                return None
    return None


@contextlib.contextmanager
def _one_interrupt() -> Iterator[None]:
    """Ctrl-C and SIGTERM interrupt once. A second one would interrupt the cleanup."""
    interrupted = False

    def interrupt(*_: object) -> None:
        nonlocal interrupted
        if not interrupted:
            interrupted = True
            raise Interrupted

    before = {each: signal.signal(each, interrupt) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
