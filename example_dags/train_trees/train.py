"""Boost trees on scikit-learn's handwritten digits, over as many nodes as there are.

The training that two_nodes.py runs, one process a node, and an example of what a training on several nodes owes to the
nodes that it uses:

- its peers come from the environment: AIRFLOW_GPU_NODE_RANK, AIRFLOW_GPU_NODES, MASTER_ADDR and MASTER_PORT. Without
  them it trains alone;
- each rank reads its own part of the data. The ranks sum up their gradients for every tree (XGBoost's own collective,
  with its tracker on rank 0), so that all have the same model, that of the whole data;
- a peer that is not there yet is waited for, and one that is gone ends the others;
- told to stop (SIGTERM) on any node, all stop after the same round, with a checkpoint, and exit with 143. Started
  again, they go on from there with the same trees as if they had never stopped;
- rank 0 writes the checkpoint, reads it and sends it to the others, and writes the result for Airflow's XCom sidecar.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xgboost
from sklearn.datasets import load_digits
from xgboost import collective
from xgboost.tracker import RabitTracker

DIGITS = 10
HELD_OUT = 360
XCOM_FOLDER = Path("/airflow/xcom")
CHECKPOINT_NAME = "checkpoint.ubj"
# A peer that pulls its image on a new machine may take minutes; one that has begun answers within a round.
PEERS_SECONDS = 900
ROUND_SECONDS = 120


class Failed(Exception):
    """The training cannot go on, on this rank."""


@dataclass(kw_only=True)
class Gang:
    """Which of how many processes this one is, and where they meet."""

    rank: int
    nodes: int
    address: str
    port: int
    tracker: RabitTracker | None = None
    """Rank 0's. Kept to the process's end: to free it before all ranks have parted is an error."""

    @classmethod
    def from_environment(cls) -> Gang:
        return cls(
            rank=int(os.environ.get("AIRFLOW_GPU_NODE_RANK", "0")),
            nodes=int(os.environ.get("AIRFLOW_GPU_NODES", "1")),
            address=os.environ.get("MASTER_ADDR", "localhost"),
            port=int(os.environ.get("MASTER_PORT", "29500")),
        )

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Meet the other ranks, and part from them at the end."""
        if self.rank == 0:
            self.tracker = self._tracker()
        self._meet()
        print(f"rank {collective.get_rank()} of {collective.get_world_size()} on {socket.gethostname()}", flush=True)
        # No finally: a rank that fails leaves at once, and the others see that it is gone.
        yield
        collective.finalize()
        if self.tracker is not None:
            self.tracker.wait_for(ROUND_SECONDS)

    def _tracker(self) -> RabitTracker:
        # Its own address rather than all of them: another training on this machine may use the same port.
        tracker = RabitTracker(
            n_workers=self.nodes,
            host_ip=socket.gethostbyname(socket.gethostname()),
            port=self.port,
            sortby="task",
            timeout=PEERS_SECONDS,
        )
        tracker.start()
        return tracker

    def _meet(self) -> None:
        deadline = time.monotonic() + PEERS_SECONDS
        while True:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # one for each attempt
                    return self._join()
            except (socket.gaierror, xgboost.core.XGBoostError):
                # Rank 0 has no address yet, or does not listen yet.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def _join(self) -> None:
        collective.init(
            dmlc_communicator="rabit",
            dmlc_tracker_uri=socket.gethostbyname(self.address),
            dmlc_tracker_port=self.port,
            dmlc_task_id=f"{self.rank:06}",
            dmlc_timeout=ROUND_SECONDS,
            dmlc_retry=1,
        )


@dataclass(frozen=True, kw_only=True)
class Digits:
    """This rank's part of the training images (64 pixels in 0..16 each), and all held-out ones."""

    training: xgboost.DMatrix
    held_out: xgboost.DMatrix
    held_out_labels: Any

    @classmethod
    def load(cls, gang: Gang) -> Digits:
        data = load_digits()
        order = np.random.default_rng(0).permutation(len(data.target))
        images, labels = data.data[order].astype(np.float32), data.target[order]
        mine = slice(HELD_OUT + gang.rank, None, gang.nodes)
        print(f"rank {gang.rank} has {len(labels[mine])} of {len(labels) - HELD_OUT} images", flush=True)
        return cls(
            training=xgboost.DMatrix(images[mine], label=labels[mine]),
            held_out=xgboost.DMatrix(images[:HELD_OUT]),
            held_out_labels=labels[:HELD_OUT],
        )


class Run:
    """One process's part of a training: from the checkpoint, or from nothing, to the last round."""

    def __init__(self, options: argparse.Namespace, gang: Gang) -> None:
        self.options = options
        self.gang = gang
        self.checkpoint = options.checkpoint_dir / CHECKPOINT_NAME if options.checkpoint_dir else None
        self.terminating = False

    def terminate(self, *_: object) -> None:
        """SIGTERM's handler. It only takes note: all ranks stop together."""
        self.terminating = True

    def train(self) -> dict[str, Any] | None:
        """Train to the end and return what the XCom says; None when told to stop before. Raises Failed."""
        with self.gang.together():
            digits = Digits.load(self.gang)
            booster = self._begin(digits)
            while (done := booster.num_boosted_rounds()) < self.options.rounds:
                if self._any_rank(self.terminating):
                    self._save(booster)
                    return None
                self._round(booster, digits, number=done + 1)
            return {
                "accuracy": round(accuracy(booster, digits), 4),
                "rounds": self.options.rounds,
                "nodes": collective.get_world_size(),
            }

    def _begin(self, digits: Digits) -> xgboost.Booster:
        parameters = {
            "objective": "multi:softprob",
            "num_class": DIGITS,
            "max_depth": 4,
            "tree_method": "hist",
            "device": self.options.device,
            "nthread": self.options.threads,
            "seed": self.options.seed,
        }
        booster = xgboost.Booster(parameters, [digits.training])
        stored = self._stored()
        if stored is not None:
            booster.load_model(bytearray(stored))
            print(f"resuming from round {booster.num_boosted_rounds()}", flush=True)
        return booster

    def _stored(self) -> bytes | None:
        """The checkpoint, for all ranks as rank 0 has it."""
        mine = b""
        if self.gang.rank == 0 and self.checkpoint is not None and self.checkpoint.exists():
            mine = self.checkpoint.read_bytes()
        return collective.broadcast(mine, 0) or None

    def _round(self, booster: xgboost.Booster, digits: Digits, *, number: int) -> None:
        ends_at = time.monotonic() + self.options.seconds_per_round
        if self.gang.rank == self.options.fail_on_rank and number == self.options.fail_at_round:
            raise Failed(f"failing in round {number}, as told (TRAIN_FAIL_AT_ROUND)")
        booster.update(digits.training, iteration=number - 1)
        if number % self.options.checkpoint_every == 0:
            self._save(booster)
        if self.gang.rank == 0:
            print(f"round {number:02d}/{self.options.rounds} accuracy {accuracy(booster, digits):.2f}", flush=True)
        while not self.terminating and (rest := ends_at - time.monotonic()) > 0:
            time.sleep(min(rest, 0.05))

    def _any_rank(self, flag: bool) -> bool:
        return bool(collective.allreduce(np.array([int(flag)], dtype=np.int32), collective.Op.MAX)[0])

    def _save(self, booster: xgboost.Booster) -> None:
        """Write beside the old checkpoint, then replace it: a reader, or a kill, never meets half a file."""
        if self.gang.rank != 0 or self.checkpoint is None:
            return
        self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.checkpoint.with_suffix(".unfinished")
        with unfinished.open("wb") as file:
            file.write(booster.save_raw("ubj"))
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self.checkpoint)


def accuracy(booster: xgboost.Booster, digits: Digits) -> float:
    """Share of the held-out digits that the model names right."""
    named = booster.predict(digits.held_out).argmax(axis=1)
    return float((named == digits.held_out_labels).mean())


def folder(text: str) -> Path:
    if "://" in text:
        raise argparse.ArgumentTypeError(f"{text} is a URL; this training keeps its checkpoint in a folder: mount one")
    return Path(text)


def parse_options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Boost trees on handwritten digits, on one node or several.")
    parser.add_argument("--rounds", type=int, default=int(os.environ.get("TRAIN_ROUNDS", "30")))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=["cuda", "cpu"], default=os.environ.get("TRAIN_DEVICE", "cuda"))
    parser.add_argument("--threads", type=int, default=int(os.environ.get("TRAIN_THREADS", "0")), help="0: all")
    parser.add_argument(
        "--checkpoint-dir",
        type=folder,
        default=os.environ.get("AIRFLOW_GPU_CHECKPOINT") or None,
        help="keep a checkpoint there, and begin from it where there is one (default: none is kept)",
    )
    parser.add_argument("--checkpoint-every", type=int, default=5, help="rounds")
    parser.add_argument(
        "--seconds-per-round",
        type=float,
        default=float(os.environ.get("TRAIN_SECONDS_PER_ROUND", "0")),
        help="take at least this long over a round, so that a demonstration can be watched (default: 0)",
    )
    parser.add_argument(
        "--fail-at-round",
        type=int,
        default=int(os.environ.get("TRAIN_FAIL_AT_ROUND", "0")),
        help="exit with an error at the start of this round, to see what a failed night looks like",
    )
    parser.add_argument("--fail-on-rank", type=int, default=1, help="the rank that --fail-at-round is for")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    gang = Gang.from_environment()
    run = Run(parse_options(arguments), gang)
    signal.signal(signal.SIGTERM, run.terminate)
    try:
        result = run.train()
    except (Failed, xgboost.core.XGBoostError) as error:
        print(f"rank {gang.rank}: {str(error).partition('Stack trace')[0].strip()}", file=sys.stderr, flush=True)
        # Not by returning, which would wait for the tracker, and that for all ranks.
        os._exit(1)
    if result is None:
        print("terminated; the checkpoint is written", flush=True)
        return 128 + signal.SIGTERM
    if gang.rank == 0:
        print(json.dumps(result), flush=True)
        if XCOM_FOLDER.is_dir():
            (XCOM_FOLDER / "return.json").write_text(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
