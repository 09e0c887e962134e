"""ROW: what became of a cell of the chaos matrix that ended as it should, for tests to vary."""

from __future__ import annotations

from tests.airflow.chaos.matrix import Row

ROW = Row(
    number=1,
    seed=7,
    platform="eks",
    when=["train-deferred"],
    what=["api-server-down"],
    run="chaos_deferred/c1",
    state="success",
    pods=1,
    seconds=60.0,
    seconds_to_zero=0.2,
    zero_by="itself",
    bound=60.0,
    left="",
    broken=[],
    airflow="",
    harmed=[],
)
