"""`airflow` commands, each in a process forked from this one: to import Airflow costs four seconds of CPU.

Started with commands as JSON, which it runs by itself first. Then each line of its input is one more command, with what
its environment has besides and the files for its output; the answer, to those first ones too, is a line with the
exit status.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from typing import Any, NoReturn

from airflow import settings
from airflow.cli.cli_parser import get_parser


def main() -> None:
    for command in json.loads(sys.argv[1]):
        _run(command)
    _import_what_commands_need()
    _answer(0)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _be(json.loads(line))
        _, status = os.waitpid(pid, 0)
        _answer(os.waitstatus_to_exitcode(status))


def _answer(code: int) -> None:
    _answers.write(f"{code}\n")
    _answers.flush()


def _run(command: list[str]) -> None:
    arguments = get_parser().parse_args(command)
    arguments.func(arguments)


def _import_what_commands_need() -> None:
    import boto3  # noqa: F401
    import kubernetes.client  # noqa: F401
    from airflow.providers.amazon.aws.hooks.base_aws import AwsBaseHook  # noqa: F401

    from airflow_gpu_provider.cli import commands  # noqa: F401

    # Each command would look through, and so copy, all of this at its end: a second of CPU.
    gc.freeze()


def _be(order: dict[str, Any]) -> NoReturn:
    """Be the command, and end as it does."""
    os.environ.update(order["environment"])
    for number, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(order[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
    settings.reconfigure_orm()  # its own connections
    _run(order["arguments"])
    sys.exit()


if __name__ == "__main__":
    # What commands print before they have files of their own is for whoever reads this process's errors.
    _answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    main()
