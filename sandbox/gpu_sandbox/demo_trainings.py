"""The trainings that a demonstration can show: the example DAG of each, its image, and what its cluster must have."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpu_sandbox.errors import SandboxError
from gpu_sandbox.nodes import Image
from gpu_sandbox.sandbox import Sandbox

PROVIDER = "airflow_gpu_provider"
"""The package of the example DAGs' operators, and of their loggers."""
INHERITED = (
    "airflow.providers.amazon.aws.hooks.base_aws",
    f"{PROVIDER}:GpuPodOperator",
    f"{PROVIDER}:gpu_nodes",
)
"""What the example DAGs import, and their tasks on EKS, of what takes long to import."""
CHECKPOINTS = "checkpoints"
_STEPS = 30
_REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training that can be demonstrated. `steps`, `seconds_per_step` and `fail_at_step` name its DAG's params."""

    dag_id: str
    image: Callable[[], Image]
    steps: str
    seconds_per_step: str
    fail_at_step: str
    pace: float
    """Seconds per step, so that there is something to watch."""
    fails_at: int
    on_spot: bool = False
    """Whether its pool uses spot machines, which can be reclaimed."""
    nodes: int = 1
    shares_checkpoints: bool = False
    """Whether its pods mount the claim `checkpoints`."""

    def run_conf(self, *, fails: bool) -> dict[str, object]:
        """The DAG run's configuration."""
        return {
            self.steps: _STEPS,
            self.seconds_per_step: self.pace,
            self.fail_at_step: self.fails_at if fails else 0,
        }


def example_dags() -> Path:
    """The folder of the example DAGs; SandboxError if this is not a checkout."""
    folder = _REPOSITORY / "example_dags"
    if not folder.is_dir():
        raise SandboxError(f"the demonstration runs from a checkout of the repository: there is no {folder}")
    return folder


def training_image() -> Image:
    """`train-digits:*` stands for the example training, run by this very interpreter."""
    return _image("train-digits:*", "train_digits", {})


def trees_image() -> Image:
    """`train-trees:*` stands for the example training on several nodes; all ranks share this machine's processors."""
    return _image("train-trees:*", "train_trees", {"TRAIN_DEVICE": "cpu", "TRAIN_THREADS": "1"})


def _image(pattern: str, folder: str, env: dict[str, str]) -> Image:
    interpreter = str(Path(sys.executable).parent)
    return Image(pattern=pattern, folder=example_dags() / folder, path_prefix=interpreter, env=env)


ONE_NODE = Training(
    dag_id="nightly_training_eks",
    image=training_image,
    steps="epochs",
    seconds_per_step="seconds_per_epoch",
    fail_at_step="fail_at_epoch",
    pace=0.15,
    fails_at=12,
)
TWO_NODES = Training(
    dag_id="two_nodes",
    image=trees_image,
    steps="rounds",
    seconds_per_step="seconds_per_round",
    fail_at_step="fail_at_round",
    pace=0.3,
    fails_at=12,
    on_spot=True,
    nodes=2,
    shares_checkpoints=True,
)
TRAININGS = {"one-node": ONE_NODE, "two-nodes": TWO_NODES}


def claim_checkpoints(sandbox: Sandbox, folder: Path) -> None:
    """Make the claim `checkpoints`, which pods of every node mount: a folder here stands for the network's file system.

    Raises:
        SandboxError: The API server refused it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o777)  # whatever user the pods run as
    shape = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {
        "metadata": {"name": CHECKPOINTS},
        "spec": {**shape, "capacity": {"storage": "1Gi"}, "hostPath": {"path": str(folder)}},
    }
    claim = {
        "metadata": {"name": CHECKPOINTS},
        "spec": {**shape, "volumeName": CHECKPOINTS, "resources": {"requests": {"storage": "1Gi"}}},
    }
    for path, body in (
        ("/api/v1/persistentvolumes", volume),
        ("/api/v1/namespaces/default/persistentvolumeclaims", claim),
    ):
        status, answer = sandbox.control_plane.request("POST", path, body)
        if status != 201:
            raise SandboxError(f"the claim {CHECKPOINTS} could not be made: {status} {answer}")
