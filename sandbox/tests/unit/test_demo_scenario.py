"""What a demonstration can show: its training, and what is to go wrong."""

from __future__ import annotations

import pytest

from gpu_sandbox.demo import Scenario


def test_trainings_and_their_runs() -> None:
    one, two = Scenario.parse([]), Scenario.parse(["spot-lost"], "two-nodes")
    assert (one.training.dag_id, one.training.nodes) == ("nightly_training_eks", 1)
    assert (two.training.dag_id, two.training.nodes) == ("two_nodes", 2)
    assert two.spot_lost
    assert two.expected_state == "success"
    assert two.training.run_conf(fails=True)["fail_at_round"] == two.training.fails_at


@pytest.mark.parametrize(
    ("faults", "training", "words"),
    [
        ([], "three-nodes", "known: one-node, two-nodes"),
        (["nonsense"], "two-nodes", "known: stockout:ZONE"),
        (["spot-lost"], "one-node", "these do: two-nodes"),
    ],
)
def test_what_cannot_be_shown_is_told(faults: list[str], training: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Scenario.parse(faults, training)
