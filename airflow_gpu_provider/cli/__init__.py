"""`airflow gpu`: its commands and their arguments. Loaded at every `airflow` call, so it imports no command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.cli.cli_config import CLICommand

_COMMANDS = {
    "pools": "List the GPU pools that DAGs name",
    "plan": "Show what the next run would change about the pools' groups; nothing is changed",
    "status": "Show nodes, GPUs in use and idle, which runs want nodes, and their cost per hour",
    "doctor": "Look for what would stop the next run: credentials, permissions, groups, quota, stock, plugin, driver",
    "reap": "List leftovers that no run wants, and remove them with --yes",
    "extend": "Let a DAG run that is still running keep its nodes for longer",
    "cost": "Add up what nights have cost, by month, DAG and pool, as far as Airflow keeps their bills",
    "advise": "Show what a DAG's last nights say: when to start, what was lost, what else they could run on",
    "manifest": "Print the manifest that InstallClusterAutoscalerOperator applies to a pool's cluster",
    "accept": "Try a pool's nights on its own account, for money, and write a report; --yes-it-costs does it",
}

_OF_DAG = {
    "": "Only pools that this DAG names",
    "extend": "The DAG whose run it is, and only pools that it names",
    "cost": "Only what this DAG's runs have cost",
}


def get_commands() -> list[CLICommand]:
    """Return the `gpu` command group, for Airflow's command line."""
    from airflow.cli.cli_config import ARG_OUTPUT, ARG_VERBOSE, ActionCommand, GroupCommand, lazy_load_command

    pools = _argument("pools", nargs="*", metavar="POOL", help="Names of pools; default: all that are found")
    common = (
        _argument(
            "--spec",
            metavar="FILE",
            help="Take pools from this JSON or YAML file, as GpuPool.serialize() writes them, and not from DAGs",
        ),
        ARG_OUTPUT,
        ARG_VERBOSE,
    )
    more = {
        "plan": (
            _argument("--nodes", type=int, help="For so many nodes (default: the pool's max_nodes)"),
            _argument("--max-cost", type=float, help="And how long so much money lasts, at each candidate's price"),
        ),
        "doctor": (
            _argument("--pod-namespace", default="default", help="Where pods run (default: default)"),
            _argument("--strict", action="store_true", help="Exit with 2 where something could not be checked"),
        ),
        "reap": (
            _argument("--yes", action="store_true", help="Remove what is found; without it nothing is changed"),
            _argument("--timeout", type=float, default=300.0, help="Seconds to wait until all is gone (default: 300)"),
        ),
        "extend": (
            _argument("--run-id", required=True, help="Whose nodes: the run of the DAG that --dag-id names"),
            _argument("--hours", type=float, help="How much longer; at most a year in all"),
            _argument("--max-cost", type=float, help="Or what it may cost in all, more than its DAG's max_cost"),
            _argument("--reason", help="Why; needed for more money, and beyond the pool's max_runtime"),
            _argument("--block-id", help="Only this block of the run (default: all of them)"),
            _argument(
                "--pods-may-end",
                action="store_true",
                help="For what starts later, although a pod that runs ends before; without it that changes nothing",
            ),
        ),
        "cost": (_argument("--since", metavar="DAY", help="From this day on, UTC (default: the first of this month)"),),
        "advise": (
            _argument("--nights", type=int, default=30, help="Of the last so many nights of each block (default: 30)"),
            _argument(
                "--done-by", default="07:00", metavar="HH:MM", help="When the work is to be over (default: 07:00)"
            ),
        ),
        "manifest": (
            _argument(
                "--flag", action="append", default=[], help="A flag of its own, as --flag=--v=4; may be repeated"
            ),
            _argument("--image", help="Image with its tag or digest (default: that of the cluster's minor version)"),
            _argument("--role-arn", help="IAM role of its service account (IRSA)"),
        ),
        "accept": (
            _argument("--image", required=True, help="Image with a way to add on a GPU: vectorAdd, python3 or nvcc"),
            _argument(
                "--yes-it-costs",
                action="store_true",
                help="Run it; without this flag only its possible cost is printed",
            ),
            _argument(
                "--price",
                type=float,
                help="What a node costs an hour, in the spec's currency (default: the spec's price_per_hour)",
            ),
            _argument("--night-minutes", type=float, default=45.0, help="Longest a night may take (default: 45)"),
            _argument("--report", default="acceptance.md", metavar="FILE", help="Report (default: acceptance.md)"),
            _argument("--pod-namespace", default="default", help="Where pods run (default: default)"),
        ),
    }
    of_pools = (pools, _argument("--dag-id", help=_OF_DAG[""]), *common)
    those = {
        **{name: (pools, _argument("--dag-id", help=text), *common) for name, text in _OF_DAG.items()},
        "manifest": (_argument("addon", choices=("cluster-autoscaler",), help="Whose manifest"), *of_pools),
        "advise": (_argument("dag_id", metavar="DAG", help="The DAG whose nights they are"), ARG_OUTPUT, ARG_VERBOSE),
    }
    commands = [
        ActionCommand(
            name=name,
            help=text,
            func=lazy_load_command(f"airflow_gpu_provider.cli.commands.{name}"),
            args=(*those.get(name, of_pools), *more.get(name, ())),
        )
        for name, text in _COMMANDS.items()
    ]
    return [GroupCommand(name="gpu", help="GPU pools: what is there, what it costs, and its end", subcommands=commands)]


def _argument(*flags: str, **options: Any) -> Any:
    from airflow.cli.cli_config import Arg

    return Arg(flags, **options)  # type: ignore[no-untyped-call]
