"""Train a small neural network on handwritten digits: CuPy on a GPU, NumPy elsewhere, the same code.

The data are the 1797 UCI digits that scikit-learn carries, so nothing is downloaded. The network is a
perceptron with one hidden layer, trained with Adam. The program behaves as a training in a pod should:

- one line per epoch on stdout;
- a checkpoint after every epoch (AIRFLOW_GPU_CHECKPOINT, from GpuPodOperator's `checkpoint=`; else CHECKPOINT_DIR),
  replaced atomically; where one is found, training goes on from it and ends with the same numbers as if it had
  never stopped;
- on SIGTERM (the pod is deleted, the spot machine is taken away) it checkpoints and exits with 143;
- the result goes to /airflow/xcom/return.json where Airflow's XCom sidecar is listening.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

PIXELS, HIDDEN, DIGITS = 64, 64, 10
BATCH = 64
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
HELD_OUT = 360
XCOM_FOLDER = Path("/airflow/xcom")
CHECKPOINT_NAME = "checkpoint.npz"

Array = Any  # numpy.ndarray or cupy.ndarray


class Terminated(Exception):
    """SIGTERM came; the state is checkpointed."""


def choose_device(wanted: str) -> tuple[Any, str]:
    """Return the array module and the device's name; `wanted` is auto, gpu or cpu."""
    if wanted == "cpu":
        return np, "cpu"
    try:
        import cupy

        properties = cupy.cuda.runtime.getDeviceProperties(0)
    except (ImportError, RuntimeError) as error:  # CuPy's CUDA errors are RuntimeErrors
        if wanted == "gpu":
            sys.exit(f"no GPU to train on: {error}")
        return np, "cpu"
    return cupy, properties["name"].decode()


@dataclass(frozen=True, kw_only=True)
class Digits:
    """Training and held-out images (one row of 64 pixels in 0..1 each) with their digits."""

    images: Array
    labels: Array
    held_out_images: Array
    held_out_labels: Array

    @classmethod
    def load(cls, xp: Any) -> Digits:
        data = load_digits()
        order = np.random.default_rng(0).permutation(len(data.target))
        images = (data.data[order] / 16).astype(np.float32)
        labels = data.target[order].astype(np.int64)
        return cls(
            images=xp.asarray(images[HELD_OUT:]),
            labels=xp.asarray(labels[HELD_OUT:]),
            held_out_images=xp.asarray(images[:HELD_OUT]),
            held_out_labels=xp.asarray(labels[:HELD_OUT]),
        )


@dataclass(kw_only=True)
class Training:
    """Everything a checkpoint holds: the network, Adam's moments, and how far the training has come."""

    weights: dict[str, Array]
    first_moments: dict[str, Array]
    second_moments: dict[str, Array]
    step: int = 0  # batches done since the start of the training
    loss_sum: float = 0.0  # over the batches done in the present epoch

    @classmethod
    def fresh(cls, xp: Any, *, seed: int) -> Training:
        random = np.random.default_rng(seed)

        def layer(inputs: int, outputs: int) -> Array:
            return xp.asarray(random.normal(0, np.sqrt(2 / inputs), (inputs, outputs)).astype(np.float32))

        weights = {
            "w1": layer(PIXELS, HIDDEN),
            "b1": xp.zeros(HIDDEN, dtype=np.float32),
            "w2": layer(HIDDEN, DIGITS),
            "b2": xp.zeros(DIGITS, dtype=np.float32),
        }
        zeros = {name: xp.zeros_like(weight) for name, weight in weights.items()}
        return cls(weights=weights, first_moments=zeros, second_moments=dict(zeros))

    @classmethod
    def load(cls, xp: Any, path: Path) -> Training:
        with np.load(path) as stored:

            def group(prefix: str) -> dict[str, Array]:
                return {
                    name.removeprefix(prefix): xp.asarray(stored[name])
                    for name in stored.files
                    if name.startswith(prefix)
                }

            return cls(
                weights=group("weight_"),
                first_moments=group("first_"),
                second_moments=group("second_"),
                step=int(stored["step"]),
                loss_sum=float(stored["loss_sum"]),
            )

    def save(self, path: Path) -> None:
        """Write beside the old checkpoint, then replace it: a reader, or a kill, never meets half a file."""
        arrays: dict[str, Array] = {"step": self.step, "loss_sum": self.loss_sum}
        for prefix, group in (
            ("weight_", self.weights),
            ("first_", self.first_moments),
            ("second_", self.second_moments),
        ):
            arrays |= {prefix + name: on_host(array) for name, array in group.items()}
        unfinished = path.with_suffix(".unfinished")
        with unfinished.open("wb") as file:
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)

    def learn(self, xp: Any, images: Array, labels: Array, *, rate: float) -> None:
        """One batch: forward, backward, one step of Adam."""
        weights = self.weights
        hidden = xp.maximum(images @ weights["w1"] + weights["b1"], 0)
        probabilities = softmax(xp, hidden @ weights["w2"] + weights["b2"])
        rows = xp.arange(len(labels))
        loss = -xp.log(probabilities[rows, labels] + np.float32(1e-12)).mean()

        error = probabilities.copy()
        error[rows, labels] -= 1
        error /= len(labels)
        hidden_error = (error @ weights["w2"].T) * (hidden > 0)
        gradients = {
            "w1": images.T @ hidden_error,
            "b1": hidden_error.sum(axis=0),
            "w2": hidden.T @ error,
            "b2": error.sum(axis=0),
        }
        self.step += 1
        self.loss_sum += float(loss)
        for name, gradient in gradients.items():
            self._adam(xp, name, gradient, rate)

    def _adam(self, xp: Any, name: str, gradient: Array, rate: float) -> None:
        first = BETA1 * self.first_moments[name] + (1 - BETA1) * gradient
        second = BETA2 * self.second_moments[name] + (1 - BETA2) * gradient**2
        self.first_moments[name], self.second_moments[name] = first, second
        unbiased_first = first / (1 - BETA1**self.step)
        unbiased_second = second / (1 - BETA2**self.step)
        change = rate * unbiased_first / (xp.sqrt(unbiased_second) + EPSILON)
        self.weights[name] = self.weights[name] - change

    def accuracy(self, xp: Any, data: Digits) -> float:
        """Share of the held-out digits that the network names right."""
        weights = self.weights
        hidden = xp.maximum(data.held_out_images @ weights["w1"] + weights["b1"], 0)
        named = (hidden @ weights["w2"] + weights["b2"]).argmax(axis=1)
        return float((named == data.held_out_labels).mean())


def softmax(xp: Any, scores: Array) -> Array:
    powers = xp.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def on_host(array: Array) -> np.ndarray:
    """The array in the machine's own memory (CuPy arrays have a `get`, NumPy's have none)."""
    host_array: np.ndarray = array.get() if hasattr(array, "get") else array
    return host_array


class Run:
    """One process's part of a training: from the checkpoint, or from nothing, to the last epoch."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.xp, self.device = choose_device(options.device)
        self.checkpoint = options.checkpoint_dir / CHECKPOINT_NAME if options.checkpoint_dir else None
        self.terminating = False

    def terminate(self, *_: object) -> None:
        """SIGTERM's handler. It only takes note: the loop stops where its state is whole."""
        self.terminating = True

    def train(self) -> dict[str, Any]:
        """Train to the end and return what the XCom says."""
        data = Digits.load(self.xp)
        batches = len(data.labels) // BATCH
        training = self._begin(batches)
        while (epoch := training.step // batches) < self.options.epochs:
            if self.options.fail_at_epoch == epoch + 1:
                sys.exit(f"failing in epoch {epoch + 1}, as told (TRAIN_FAIL_AT_EPOCH)")
            self._epoch(training, data, epoch=epoch, batches=batches)
        return {
            "accuracy": round(training.accuracy(self.xp, data), 4),
            "epochs": self.options.epochs,
            "learning_rate": self.options.learning_rate,
            "seed": self.options.seed,
            "device": self.device,
            "data": self.options.data,
            "model": str(self.checkpoint) if self.checkpoint else None,
        }

    def _begin(self, batches: int) -> Training:
        print(f"training on {self.device} with {self.xp.__name__} {self.xp.__version__}", flush=True)
        if self.checkpoint is None or not self.checkpoint.exists():
            return Training.fresh(self.xp, seed=self.options.seed)
        training = Training.load(self.xp, self.checkpoint)
        print(f"resuming from {self.checkpoint}, {training.step / batches:.1f} epochs in", flush=True)
        return training

    def _epoch(self, training: Training, data: Digits, *, epoch: int, batches: int) -> None:
        ends_at = time.monotonic() + self.options.seconds_per_epoch
        # The order follows from the seed and the epoch alone, so that a resumed run sees the same batches.
        order = np.random.default_rng([self.options.seed, epoch]).permutation(len(data.labels))
        for batch in range(training.step % batches, batches):
            self._stop_if_told(training)
            chosen = self.xp.asarray(order[batch * BATCH : (batch + 1) * BATCH])
            rate = self.options.learning_rate
            training.learn(self.xp, data.images[chosen], data.labels[chosen], rate=rate)
        loss, training.loss_sum = training.loss_sum / batches, 0.0
        accuracy = training.accuracy(self.xp, data)
        self._save(training)  # before the line: an epoch that was told is never done again
        line = f"epoch {epoch + 1:02d}/{self.options.epochs} loss {loss:.4f} accuracy {accuracy:.2f}"
        print(line, flush=True)
        while (rest := ends_at - time.monotonic()) > 0:
            self._stop_if_told(training)
            time.sleep(min(rest, 0.05))

    def _stop_if_told(self, training: Training) -> None:
        if self.terminating:
            self._save(training)
            raise Terminated

    def _save(self, training: Training) -> None:
        if self.checkpoint is not None:
            self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
            training.save(self.checkpoint)


def folder(text: str) -> Path:
    if "://" in text:
        raise argparse.ArgumentTypeError(f"{text} is a URL; this training keeps its checkpoint in a folder: mount one")
    return Path(text)


def parse_options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small neural network on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=int(os.environ.get("TRAIN_EPOCHS", "30")))
    parser.add_argument("--learning-rate", type=float, default=0.003)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=["auto", "gpu", "cpu"], default="auto", help="auto: a GPU if any")
    parser.add_argument(
        "--data",
        default=os.environ.get("TRAIN_DATA") or None,
        help="the data's name, for the result: here the digits are always the same (default: none)",
    )
    parser.add_argument(
        "--checkpoint-dir",
        type=folder,
        default=os.environ.get("AIRFLOW_GPU_CHECKPOINT") or os.environ.get("CHECKPOINT_DIR") or None,
        help="keep a checkpoint there, and begin from it where there is one (default: none is kept)",
    )
    parser.add_argument(
        "--seconds-per-epoch",
        type=float,
        default=float(os.environ.get("TRAIN_SECONDS_PER_EPOCH", "0")),
        help="take at least this long over an epoch, so that a demonstration can be watched (default: 0)",
    )
    parser.add_argument(
        "--fail-at-epoch",
        type=int,
        default=int(os.environ.get("TRAIN_FAIL_AT_EPOCH", "0")),
        help="exit with an error at the start of this epoch, to see what a failed night looks like",
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    run = Run(parse_options(arguments))
    signal.signal(signal.SIGTERM, run.terminate)
    try:
        result = run.train()
    except Terminated:
        print("terminated; the checkpoint is written", flush=True)
        return 128 + signal.SIGTERM
    print(json.dumps(result), flush=True)
    if XCOM_FOLDER.is_dir():
        (XCOM_FOLDER / "return.json").write_text(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
