"""`gpu-sandbox up --detach` starts a process that gets what it was given itself."""

from __future__ import annotations

import pytest

from gpu_sandbox import cli


@pytest.mark.parametrize(
    "given",
    [
        [],
        ["--pace=real", "--speed=60", "--seed=7"],
        ["--pace=real", "--speed=1", "--boot-seconds=5", "--autoscaler-speed=40"],
        ["--stale=0", "--autoscaler=none", "--platform=gke", "--cluster-name=other"],
        ["--with=trainer,kueue"],
    ],
)
def test_the_detached_process_has_the_same_settings(given: list[str]) -> None:
    parser = cli._parser()
    before = parser.parse_args(["up", *given])

    assert vars(parser.parse_args(["up", *cli._up_arguments(before)])) == vars(before)


@pytest.mark.parametrize(
    "given", ["--speed=0", "--speed=inf", "--pace=slow", "--seed=x", "--stale=-1", "--with=volcano"]
)
def test_what_cannot_be_is_refused(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli._parser().parse_args(["up", given])
    assert given.partition("=")[0] in capsys.readouterr().err
