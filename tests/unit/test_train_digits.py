"""The example training: it learns, goes on where it stopped with the same numbers, and stops when told."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[2] / "example_dags" / "train_digits" / "train.py"
TRAIN_VARIABLES = (
    "AIRFLOW_GPU_CHECKPOINT",
    "CHECKPOINT_DIR",
    "TRAIN_EPOCHS",
    "TRAIN_SECONDS_PER_EPOCH",
    "TRAIN_FAIL_AT_EPOCH",
)


@pytest.fixture(scope="session")
def train() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_digits", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in TRAIN_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def weights(checkpoint: Path) -> dict[str, bytes]:
    with np.load(checkpoint) as stored:
        return {name: stored[name].tobytes() for name in stored.files}


def start(folder: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), "--checkpoint-dir", str(folder), *options],
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ),  # the BLAS library reads it: other kernels, other last bits
    )


def test_learns_the_digits(train: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train.XCOM_FOLDER = tmp_path
    assert train.main(["--device", "cpu"]) == 0

    lines = capsys.readouterr().out.splitlines()
    epochs = [line for line in lines if re.fullmatch(r"epoch \d\d/30 loss \d\.\d{4} accuracy \d\.\d\d", line)]
    assert len(epochs) == 30
    result = train.json.loads((tmp_path / "return.json").read_text())
    assert result["accuracy"] >= 0.95
    assert (result["epochs"], result["device"]) == (30, "cpu")


def test_a_resumed_training_ends_with_the_same_numbers(train: ModuleType, tmp_path: Path) -> None:
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    assert train.main(["--epochs", "6", "--checkpoint-dir", str(whole)]) == 0
    assert train.main(["--epochs", "3", "--checkpoint-dir", str(halves)]) == 0
    assert train.main(["--epochs", "6", "--checkpoint-dir", str(halves)]) == 0
    assert weights(halves / train.CHECKPOINT_NAME) == weights(whole / train.CHECKPOINT_NAME)


def test_sigterm_checkpoints_and_the_next_pod_goes_on(train: ModuleType, tmp_path: Path) -> None:
    process = start(tmp_path, "--seconds-per-epoch", "60")
    assert process.stdout is not None
    while not process.stdout.readline().startswith("epoch 01"):
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 143

    resumed = start(tmp_path, "--epochs", "4")
    output, _ = resumed.communicate(timeout=60)
    assert resumed.returncode == 0
    assert "resuming from" in output
    assert "epoch 01/" not in output

    uninterrupted = tmp_path / "uninterrupted"
    assert train.main(["--epochs", "4", "--checkpoint-dir", str(uninterrupted)]) == 0
    assert weights(tmp_path / train.CHECKPOINT_NAME) == weights(uninterrupted / train.CHECKPOINT_NAME)


def test_sigterm_in_the_middle_of_an_epoch_loses_nothing(train: ModuleType, tmp_path: Path) -> None:
    run = train.Run(train.parse_options(["--epochs", "2", "--checkpoint-dir", str(tmp_path / "broken")]))
    data = train.Digits.load(np)
    broken_off = train.Training.fresh(np, seed=0)
    batches = len(data.labels) // train.BATCH
    learn = broken_off.learn

    def told_after_five(*arguments: Any, **options: Any) -> None:
        learn(*arguments, **options)
        run.terminating = broken_off.step == 5

    broken_off.learn = told_after_five
    with pytest.raises(train.Terminated):
        run._epoch(broken_off, data, epoch=0, batches=batches)
    assert train.main(["--epochs", "2", "--checkpoint-dir", str(tmp_path / "broken")]) == 0
    assert train.main(["--epochs", "2", "--checkpoint-dir", str(tmp_path / "whole")]) == 0
    name = train.CHECKPOINT_NAME
    assert weights(tmp_path / "broken" / name) == weights(tmp_path / "whole" / name)


def test_a_kill_while_writing_leaves_the_old_checkpoint(
    train: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train.main(["--epochs", "1", "--checkpoint-dir", str(tmp_path)]) == 0
    before = weights(tmp_path / train.CHECKPOINT_NAME)

    def dies_half_way(file: object, **arrays: np.ndarray) -> None:
        file.write(b"half a checkpoint")  # type: ignore[attr-defined]
        raise KeyboardInterrupt

    monkeypatch.setattr(train.np, "savez", dies_half_way)
    with pytest.raises(KeyboardInterrupt):
        train.main(["--epochs", "2", "--checkpoint-dir", str(tmp_path)])
    assert weights(tmp_path / train.CHECKPOINT_NAME) == before


def test_fails_where_told(train: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as failure:
        train.main(["--epochs", "3", "--fail-at-epoch", "2"])
    assert failure.value.code  # a text: exit status 1
    assert "epoch 01/3" in capsys.readouterr().out


def test_asking_for_a_gpu_where_there_is_none_is_an_error(train: ModuleType) -> None:
    if train.choose_device("auto")[1] != "cpu":
        pytest.skip("this machine has a GPU")
    with pytest.raises(SystemExit, match="no GPU to train on"):
        train.main(["--device", "gpu"])


def test_checkpoint_in_the_pods_environment_is_used(
    train: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHECKPOINT_DIR", "/elsewhere")
    monkeypatch.setenv("AIRFLOW_GPU_CHECKPOINT", str(tmp_path))
    assert train.parse_options([]).checkpoint_dir == tmp_path


def test_checkpoint_url_is_refused_and_not_taken_for_a_folder(
    train: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AIRFLOW_GPU_CHECKPOINT", "s3://bucket/digits/r1")
    with pytest.raises(SystemExit):
        train.parse_options([])
    assert "s3://bucket/digits/r1 is a URL" in capsys.readouterr().err
