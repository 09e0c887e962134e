"""The table in docs/errors.md of the message of each type of error, made from the code.

`python -m tests.unit.error_messages` writes it; test_docs.py checks that it is current. A message is one that the
package's source writes out, with "…" for what a run puts in; where a function chooses the words, it is called.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from google.api_core.exceptions import Forbidden

from airflow_gpu_provider import EksGpuPool, errors
from airflow_gpu_provider.clouds.google.errors import mapped_errors
from airflow_gpu_provider.cluster.model.refusals import refusal
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.training.life.diagnosis import diagnosed
from airflow_gpu_provider.training.wait.end import CORRECT_PROGRAM
from tests.unit.house.source import trees

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/errors.md"
BEGIN = "<!-- written by python -m tests.unit.error_messages -->"
END = "<!-- end of what it writes -->"
ANY = "…"

# Of a type with several messages, words of the one to show.
SHOWN: Mapping[str, str] = {
    "PoolSpecError": "No GPU pool is given",
    "CheckpointUnusable": "the task mounts no volume",
    "CodeUnusable": "are the most",
    "ClusterNotFound": "no EKS cluster",
    "ClusterUnreachable": "Check that the worker can reach",
    "CredentialsError": "AWS does not accept",
    "PermissionDenied": "AWS refused",
    "CloudError": "Google Cloud throttled",
    "RequestRejected": "AWS rejected",
    "ObjectRejected": "as invalid",
    "ResourceQuotaExceeded": "is exhausted",
    "PoolDrift": "was set up by",
    "GangHung": "as in a hang",
    "GpuHung": "as in a hang",
    "GroupFailed": "has no usable node group",
    "GroupNotFound": "has no node group",
    "QuotaExceeded": "the account's quota",
    "PriceUnknown": "needs the price of each node",
    "BudgetExceeded": "is used at the latest by now",
    "OutOfStock": "No capacity for",
    "NodesNotReady": "Not joined",
    "GpusNotAllocatable": "is InstallDevicePluginOperator",
    "NoProvisioner": "has no NodePool",
    "AutoscalerNotRunning": "no cluster-autoscaler reports",
    "DemandNotExtended": "is over; nothing was extended",
    "DevicePluginConflict": "next to the plugin",
    "PodUnschedulable": "more than any machine",
    "PodPreempted": "before the pod had finished",
    "EndUnknown": "its end was not seen: it may",
    "PodResultLost": "has never started",
    "PodDeadline": "got no node in",
    "PoolNotReleased": "is not back to its size",
    "BlockFailed": "Tasks failed",
}


# Methods that make an error of what they are given.
MADE_BY: Mapping[str, Collection[str]] = {"hung": ("GpuHung", "GangHung")}


def table() -> str:
    """Return the table's rows: each type, whether another try can help, and the message."""
    rows = ["| the error | tried again | the message |", "|---|---|---|"]
    for cls in sorted(errors.error_types()[1:], key=lambda each: each.__name__):
        if cls.__module__ == errors.__name__:
            what, fix = _message(cls)
            message = " ".join(filter(None, (what, fix)))
            rows.append(f"| `{cls.__name__}` | {'yes' if cls.retryable else 'no'} | {_cell(message)} |")
    return "\n".join(rows)


def page(text: str) -> str:
    """Return the page with the table as it is now."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.split(END)[1]}"


def _cell(text: str) -> str:
    return re.sub(f"{ANY}+", ANY, text).replace("\n", " ").replace("|", "\\|").replace("<", "&lt;")


def _message(cls: type[GpuError]) -> tuple[str, str]:
    name = cls.__name__
    if name in CALLED:
        error = CALLED[name]()
        assert type(error).__name__ == name, f"{name}: it is {error!r} now"
        return error.what, error.fix
    written = list(dict.fromkeys(WRITTEN.get(name, ())))
    found = [each for each in written if SHOWN.get(name, "") in " ".join(each)]
    assert found, f"{name}: SHOWN has no words of {written}"
    return found[0]


# -- what the source writes out ------------------------------------------------------------------------------------


def _written() -> dict[str, list[tuple[str, str]]]:
    names = {cls.__name__ for cls in errors.error_types()}
    found: dict[str, list[tuple[str, str]]] = {}
    modules = [*trees().values()]
    constants = {name: value for name, value in _assigned_once(*modules).items() if name.isupper()}
    for module in modules:
        known = constants | _assigned_once(module)
        for node in ast.walk(module):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            what, fix = (_text(each, known) for each in (*node.args, ast.Constant(""))[:2])
            if what != ANY:
                for name in MADE_BY.get(called, {called} & names):
                    found.setdefault(name, []).append((what, fix))
    return found


def _assigned_once(*modules: ast.Module) -> dict[str, ast.expr]:
    found: dict[str, list[ast.expr]] = {}
    for node in (node for module in modules for node in ast.walk(module)):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, []).append(node.value)
    return {name: values[0] for name, values in found.items() if len(values) == 1}


def _text(node: ast.AST, known: Mapping[str, ast.expr]) -> str:
    """Return what an expression says whatever its values are; `known` has what names stand for."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(each, known) for each in node.values)
    if isinstance(node, ast.FormattedValue):
        return _text(node.value, known)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left, known) + _text(node.right, known)
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.GeneratorExp):
        return _text(node.args[0].elt, known)  # one of the several that are joined
    if isinstance(node, ast.Name) and node.id in known:
        return _text(known[node.id], {name: value for name, value in known.items() if name != node.id})
    return ANY


WRITTEN = _written()


# -- what a function words -----------------------------------------------------------------------------------------


def _last_line(line: str) -> Callable[[], GpuError]:
    pool = EksGpuPool(name="l4", cluster_name="ml", region="us-west-2", instance_types=["g6.xlarge"], max_nodes=1)
    what = f"Pod {ANY}: container base ended with exit code {ANY}."
    failed = errors.PodFailed(what, CORRECT_PROGRAM, exit_code=1)
    return lambda: diagnosed(failed, [line], pool=pool, node=ANY, bad_gpu="")


def _kubernetes(status: int, message: str) -> Callable[[], GpuError]:
    return lambda: refusal(status, {"message": message}, "create", "pods")


def _google_refuses() -> GpuError:
    try:
        with mapped_errors(call="container.clusters.get", connection=ANY):
            raise Forbidden("it is disabled. Enable it")
    except GpuError as error:
        return error


CALLED: Mapping[str, Callable[[], GpuError]] = {
    "ConnectionNotFound": lambda: errors.ConnectionNotFound.named(ANY, "aws_conn_id"),
    "PodFailed": _last_line(ANY),
    "PriceLimitExceeded": lambda: errors.PriceLimitExceeded.of(ANY, [ANY]),
    "ReferenceNotFound": _kubernetes(404, f'namespaces "{ANY}" not found'),
    "NamespaceTerminating": _kubernetes(403, f'pods "{ANY}" is forbidden: {ANY} because it is being terminated'),
    "AdmissionDenied": _kubernetes(400, f'admission webhook "{ANY}" denied the request: {ANY}'),
    "ServiceDisabled": _google_refuses,
    "GpuOutOfMemory": _last_line("torch.OutOfMemoryError: CUDA out of memory."),
    "DriverMissing": _last_line("RuntimeError: Found no NVIDIA driver on your system."),
    "BadGpu": _last_line("NVRM: Xid (PCI:0000:00:1e): 79, GPU has fallen off the bus."),
}


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
