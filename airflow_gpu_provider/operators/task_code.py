"""Where the code of a task lies that its pods are to have: beside its DAG file, within that file's bundle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from airflow.providers.common.compat.sdk import conf

from airflow_gpu_provider.errors import CodeUnusable
from airflow_gpu_provider.tasks.pool_operator import of_task
from airflow_gpu_provider.training.code.code_files import Code, code_folder, given_code, read_code

if TYPE_CHECKING:
    from airflow.sdk import DAG


def check_folder(code: object, dag: DAG | None, task_id: str) -> None:
    """Check the folder that a task's `code` names, as this machine has it; raises CodeUnusable with the task's id."""
    try:
        file, bundle = _places(dag)
        code_folder(given_code(code), file, bundle)
    except CodeUnusable as error:
        raise of_task(error, task_id, dag) from error.__cause__


def take_code(code: str, dag: DAG | None) -> Code:
    """Read what a task's `code` names, as this machine has it now.

    Of a versioned bundle it is the version that Airflow has pinned for the run, of a LocalDagBundle today's.

    Raises:
        CodeUnusable: See `code_folder` and `read_code`.
    """
    file, bundle = _places(dag)
    return read_code(code_folder(code, file, bundle), bundle, conf.get("core", "dag_ignore_file_syntax"))


def _places(dag: DAG | None) -> tuple[Path, Path]:
    """Return a DAG's file and its bundle; the file's own folder where it was not read from a bundle."""
    if dag is None:
        raise CodeUnusable("code= needs the file of the task's DAG.", "Give the task a DAG.")
    file = Path(dag.fileloc)
    within = Path(dag.relative_fileloc or file.name)
    return file, file.parent if within.is_absolute() else file.parents[len(within.parts) - 1]
