"""`gpu-sandbox`: a GPU cloud on this machine, from the command line."""

from __future__ import annotations

import argparse
import json
import logging
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_sandbox.errors import SandboxError

if TYPE_CHECKING:
    from gpu_sandbox.control_api import ControlApiClient
    from gpu_sandbox.nodes import Image

_Changes = Callable[[argparse.Namespace], dict[str, Any]]

DEFAULT_NAME = "default"
_SECONDS_OF = {"seconds": 1.0, "minutes": 60.0, "hours": 3600.0}
_ADVANCE_SECONDS = 600.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status (1 for an error of the sandbox's, which is printed)."""
    arguments = _parser().parse_args(argv)
    run: Callable[[argparse.Namespace], int | None] = arguments.run
    try:
        return run(arguments) or 0
    except SandboxError as error:
        print(f"gpu-sandbox: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _demo(arguments: argparse.Namespace) -> int:
    from gpu_sandbox import demo

    return demo.run(training=arguments.training, faults=arguments.fault, report=arguments.report, ui=arguments.ui)


def _up(arguments: argparse.Namespace) -> None:
    from gpu_sandbox import supervisor

    if arguments.detach:
        supervisor.start_detached(arguments.name, _up_arguments(arguments), progress=_say)
        return
    from gpu_sandbox.autoscaler import AutoscalerTimings
    from gpu_sandbox.sandbox import Sandbox

    by_itself = arguments.autoscaler_speed

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    sandbox = Sandbox(
        platform=arguments.platform,
        cluster_name=arguments.cluster_name,
        boot_seconds=arguments.boot_seconds,
        images=[_image(given) for given in arguments.image],
        autoscaler=arguments.autoscaler,
        engines=arguments.engines,
        autoscaler_timings=AutoscalerTimings().scaled(by_itself) if by_itself else None,
        clock=arguments.clock,
        pace=arguments.pace,
        speed=arguments.speed,
        seed=arguments.seed,
        stale=arguments.stale,
        data_dir=arguments.data_dir,
        progress=_say,
    )
    supervisor.supervise(
        arguments.name,
        sandbox,
        ready=lambda: _say_ready(arguments.name),
        until_stdin_closes=arguments.until_stdin_closes,
    )


def _up_arguments(arguments: argparse.Namespace) -> list[str]:
    given = [
        f"--name={arguments.name}",
        f"--platform={arguments.platform}",
        f"--cluster-name={arguments.cluster_name}",
        f"--autoscaler={arguments.autoscaler}",
        f"--clock={arguments.clock}",
        f"--seed={arguments.seed}",
        *(f"--image={image}" for image in arguments.image),
    ]
    for option in ("pace", "speed", "stale", "boot-seconds", "autoscaler-speed", "data-dir"):
        value = getattr(arguments, option.replace("-", "_"))
        if value is not None:
            given.append(f"--{option}={value}")
    if arguments.engines:
        given.append(f"--with={','.join(arguments.engines)}")
    return given


def _say_ready(name: str) -> None:
    option = "" if name == DEFAULT_NAME else f" --name {name}"
    _say(f'ready. In another shell: eval "$(gpu-sandbox env{option})"; the end: gpu-sandbox down{option}')


def _env(arguments: argparse.Namespace) -> None:
    for name, value in _call(arguments, "GET", "/env").items():
        print(f"export {name}={shlex.quote(value)}")


def _airflow(arguments: argparse.Namespace) -> None:
    from gpu_sandbox import own_dags

    env = _call(arguments, "GET", "/env")
    own_dags.run(arguments.dags, arguments.home, env, schedules=arguments.schedules, say=_say)


def _status(arguments: argparse.Namespace) -> None:
    status = _call(arguments, "GET", "/status")
    print(json.dumps(status, indent=2) if arguments.output == "json" else _status_text(status))


def _status_text(status: dict[str, Any]) -> str:
    down = [name for name, runs in status["components"].items() if not runs]
    lines = [
        f"cluster {status['cluster']} in {status['region']}, Kubernetes {status['kubernetes_version']}"
        + (f"; not running: {', '.join(down)}" if down else "")
    ]
    for node in status["nodes"]:
        state = "Ready" if node["ready"] else "NotReady"
        cordoned = ", cordoned" if node["cordoned"] else ""
        lines.append(
            f"node  {node['name']}  {node['instance_type']} {node['market']} {node['zone']}  {state}{cordoned}  "
            f"{node['gpus_used']}/{node['gpus']} GPUs  {node['pods']} pods"
        )
    lines += [f"boot  {m['name']}  {m['instance_id']} {m['zone']}" for m in status["booting"]]
    lines += [
        f"group {group['name']}  desired {group['desired']}  instances {len(group['instances'])}"
        for group in status["groups"]
    ]
    lines += [f"pod   {p['namespace']}/{p['name']}  {p['phase']}  {p['node'] or '-'}" for p in status["pods"]]
    lines += [
        f"fault {name}: {value}" for name, value in status["faults"].items() if value not in (None, False, [], {})
    ]
    return "\n".join(lines)


def _advance(arguments: argparse.Namespace) -> None:
    seconds = sum(getattr(arguments, unit) * seconds for unit, seconds in _SECONDS_OF.items())
    _call(arguments, "POST", "/advance", {"seconds": seconds}, may_take=_ADVANCE_SECONDS)


def _down(arguments: argparse.Namespace) -> None:
    from gpu_sandbox import supervisor

    supervisor.end(arguments.name)


def _fault_hang_apiserver(arguments: argparse.Namespace) -> None:
    _call(arguments, "POST", "/hang-apiserver", {"seconds": arguments.seconds}, may_take=arguments.seconds)


def _fault_cut_connections(arguments: argparse.Namespace) -> None:
    print(_call(arguments, "POST", "/cut-connections")["connections"])


def _fault_restart_apiserver(arguments: argparse.Namespace) -> None:
    seconds = arguments.down_seconds
    _call(arguments, "POST", "/restart-apiserver", {"down_seconds": seconds}, may_take=seconds)


def _fault_node_upgrade(arguments: argparse.Namespace) -> None:
    began = _call(arguments, "POST", "/upgrade-nodes", {"group": arguments.group})["began"]
    print(f"{arguments.group} is being upgraded" if began else f"{arguments.group} is excluded from upgrades")


def _fault_spot(arguments: argparse.Namespace) -> None:
    where = {name: getattr(arguments, name) for name in ("instance", "node", "zone") if getattr(arguments, name)}
    print("\n".join(_call(arguments, "POST", arguments.path, where)["instances"]))


def _fault_clear(arguments: argparse.Namespace) -> None:
    _call(arguments, "DELETE", "/faults")


def _change_faults(arguments: argparse.Namespace) -> None:
    print(json.dumps(_call(arguments, "POST", "/faults", arguments.changes(arguments)), indent=2))


def _call(arguments: argparse.Namespace, method: str, path: str, body: Any = None, *, may_take: float = 0.0) -> Any:
    return _api(arguments).call(method, path, body, may_take=may_take)


def _api(arguments: argparse.Namespace) -> ControlApiClient:
    """The sandbox that is named, else that of this shell: of `eval "$(gpu-sandbox env)"`, or of who started it."""
    from gpu_sandbox import supervisor
    from gpu_sandbox.control_api import ControlApiClient

    url, token = os.environ.get("GPU_SANDBOX_URL"), os.environ.get("GPU_SANDBOX_TOKEN")
    if arguments.name is None and url and token:
        return ControlApiClient(url=url, token=token)
    return supervisor.find(arguments.name or DEFAULT_NAME).api


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# What is typed


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpu-sandbox", description=__doc__)
    named = argparse.ArgumentParser(add_help=False)
    named.add_argument("--name", default=DEFAULT_NAME, help="which sandbox, where several run (default: %(default)s)")
    asked = argparse.ArgumentParser(add_help=False)
    asked.add_argument(
        "--name", help=f"which sandbox (default: the one of GPU_SANDBOX_URL, which `env` sets, else {DEFAULT_NAME})"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_up(commands.add_parser("up", parents=[named], help="start a sandbox"))
    env = commands.add_parser("env", parents=[asked], help="print the variables that clients need, for eval")
    env.set_defaults(run=_env)
    airflow = commands.add_parser("airflow", parents=[asked], help="run a real Airflow over your DAGs, until Ctrl-C")
    airflow.add_argument("--dags", type=_folder, required=True, metavar="FOLDER", help="where the DAG files are")
    airflow.add_argument(
        "--home",
        type=Path,
        default=Path("build/airflow"),
        metavar="FOLDER",
        help="its database and logs, kept for the next time (default: %(default)s)",
    )
    airflow.add_argument("--schedules", action="store_true", help="run DAGs on their schedules, too")
    airflow.set_defaults(run=_airflow)
    status = commands.add_parser("status", parents=[asked], help="show nodes, groups, pods and faults")
    status.add_argument("--output", choices=["text", "json"], default="text")
    status.set_defaults(run=_status)
    advance = commands.add_parser("advance", parents=[asked], help="let time pass at once, with --clock manual")
    for unit in _SECONDS_OF:
        advance.add_argument(f"--{unit}", type=_age, default=0.0)
    advance.set_defaults(run=_advance)
    fault = commands.add_parser("fault", help="make something fail")
    _add_faults(fault.add_subparsers(required=True, metavar="FAULT"), asked)
    down = commands.add_parser("down", parents=[named], help="end a sandbox; leaves no process")
    down.set_defaults(run=_down)
    demo = commands.add_parser("demo", help="show one night's training in a sandbox and an Airflow of its own")
    demo.add_argument("--training", default="one-node", help="one-node or two-nodes (default: %(default)s)")
    demo.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="FAULT",
        help="stockout:ZONE, train-fails, or spot-lost with two-nodes; may be repeated",
    )
    demo.add_argument("--report", type=Path, default=Path("build/demo-report.json"), help="(default: %(default)s)")
    demo.add_argument("--ui", action="store_true", help="leave Airflow up after the night, with ten earlier ones")
    demo.set_defaults(run=_demo)
    return parser


def _add_up(up: argparse.ArgumentParser) -> None:
    up.add_argument("--detach", action="store_true", help="return when it is ready; it runs on until `down`")
    up.add_argument(
        "--until-stdin-closes",
        action="store_true",
        help="end it when standard input closes, for programs that start it",
    )
    up.add_argument("--platform", choices=["eks", "gke"], default="eks", help="which cloud (default: %(default)s)")
    up.add_argument("--cluster-name", default="k8s-ml", help="the cluster's name (default: %(default)s)")
    up.add_argument(
        "--clock",
        choices=["system", "manual"],
        default="system",
        help="manual: the cloud stands still until `gpu-sandbox advance` (default: %(default)s)",
    )
    up.add_argument(
        "--pace",
        choices=["quick", "real"],
        help="how long the cloud takes: moments, or a real one's times over --speed (default: quick; real by hand)",
    )
    up.add_argument(
        "--speed",
        type=_speed,
        help="of a real pace, 1 for real time, and of the autoscaler's stand-in (default: 20; 1 by hand)",
    )
    up.add_argument(
        "--seed", type=int, default=0, help="what is drawn depends on it: how old reads are (default: %(default)s)"
    )
    up.add_argument(
        "--stale",
        type=_age,
        metavar="SECONDS",
        help="how old answers of the cloud's read calls may be; 0: never (default: 0.5, or the real pace's)",
    )
    up.add_argument(
        "--boot-seconds", type=float, help="from an instance's launch to its Node (default: 3, or the real pace's)"
    )
    up.add_argument(
        "--autoscaler",
        choices=["stand-in", "none"],
        default="stand-in",
        help="what grows and shrinks groups for waiting pods; none: nothing, or a real one (default: %(default)s)",
    )
    up.add_argument(
        "--autoscaler-speed",
        type=_speed,
        help="how many times as quick as a real one the stand-in is (default: --speed)",
    )
    up.add_argument(
        "--with",
        dest="engines",
        default=(),
        type=_engines,
        metavar="ENGINES",
        help="controllers that the cluster has beside Kubernetes' own, comma-separated: jobset, trainer, kueue; "
        "or custom resources alone: kuberay-crds, training-operator-crds. The first time they are compiled",
    )
    up.add_argument(
        "--image",
        action="append",
        default=[],
        type=_checked_image,
        metavar="PATTERN=FOLDER",
        help="run images that match PATTERN with this Python, FOLDER mounted at /app; may be repeated",
    )
    up.add_argument(
        "--data-dir",
        type=lambda given: Path(given).absolute(),
        help="keep logs and data here (default: a temporary folder, removed at the end)",
    )
    up.set_defaults(run=_up)


def _add_faults(faults: argparse._SubParsersAction[argparse.ArgumentParser], asked: argparse.ArgumentParser) -> None:
    def add(name: str, text: str, run: Callable[[argparse.Namespace], None], **more: str) -> argparse.ArgumentParser:
        fault = faults.add_parser(name, parents=[asked], help=text, description=text)
        fault.set_defaults(run=run, **more)
        return fault

    def change(
        name: str, text: str, changes: Callable[[argparse.Namespace], dict[str, Any]]
    ) -> argparse.ArgumentParser:
        """Add what changes the sandbox's faults: `changes` returns how, by what was typed."""
        fault = add(name, text, _change_faults)
        fault.set_defaults(changes=changes)
        return fault

    stockout = change("stockout", "no capacity; what is not named stands for any", _stockout)
    stockout.add_argument("--zone")
    stockout.add_argument("--instance-type", help="in Google Cloud also an accelerator's type")
    stockout.add_argument("--market", choices=["on-demand", "spot"])
    stockout.add_argument(
        "--code", help="fail with this error of EC2's or Compute Engine's, in place of the cloud's for it"
    )
    stockout.add_argument(
        "--left", type=int, default=0, help="in Google Cloud: so many machines of each group are there"
    )
    boot = change(
        "boot-seconds", "how long instances take from now on to join", lambda given: {"boot_seconds": given.seconds}
    )
    boot.add_argument("seconds", type=float)
    change("device-plugin-never-ready", "GPUs never become allocatable", lambda _: {"device_plugin_never_ready": True})
    change(
        "driver-never-ready",
        "NVIDIA's driver is missing, whoever installs it",
        lambda _: {"driver_never_ready": True},
    )
    change(
        "autoscaler-dead",
        "the stand-in of cluster-autoscaler does nothing any more",
        lambda _: {"autoscaler_dead": True},
    )
    throttle = change(
        "throttle",
        "throttle a share of the cloud's calls",
        lambda given: {"throttle_rates": {given.service: given.rate}},
    )
    errors = change(
        "errors",
        "fail a share of the cloud's calls with a 5xx",
        lambda given: {"error_rates": {given.service: given.rate}},
    )
    for rate in (throttle, errors):
        rate.add_argument("--service", default="*", help="eks, ec2, container, compute, ... (default: all)")
        rate.add_argument("--rate", type=float, required=True, help="0 to 1")
    limit = change(
        "call-limit",
        "throttle calls of one of AWS's APIs beyond a rate",
        lambda given: {"call_limits": {given.api: {"per_second": given.per_second, "burst": given.burst}}},
    )
    limit.add_argument("api", help="eks:DescribeNodegroup, say, or all of a service: eks")
    limit.add_argument("per_second", type=float)
    limit.add_argument("--burst", type=float, default=10.0, help="so many at once (default: 10)")
    quota = change(
        "quota", "a smaller quota than the account has", lambda given: {"quotas": {given.quota: given.limit}}
    )
    quota.add_argument("quota", help="EC2's code, in vCPUs (L-DB2E81BA), or Compute Engine's metric (NVIDIA_L4_GPUS)")
    quota.add_argument("limit", type=float)
    tokens = change(
        "token-seconds",
        "how long the cloud's bearer tokens are taken; their holders think longer",
        lambda given: {"token_seconds": given.seconds},
    )
    tokens.add_argument("seconds", type=float)
    deadlines = change(
        "deadline-speed",
        "let scheduled actions and max_run_duration come so many times as quick",
        lambda given: {"deadline_speed": given.speed},
    )
    deadlines.add_argument("speed", type=float)
    conflicts = change(
        "lease-conflicts",
        "let another writer change Leases right after a share of their changes",
        lambda given: {"lease_conflict_rate": given.rate},
    )
    conflicts.add_argument("--rate", type=float, required=True, help="0 to 1")
    use = change("gpu-use", "what the simulated nvidia-smi shows of GPUs", _gpu_use)
    use.add_argument("utilization", type=int, help="percent")
    use.add_argument("--power", type=float, default=16.0, help="W of 72 W (default: 16, an idle GPU's)")
    use.add_argument("--memory", type=int, default=1, help="MiB in use (default: 1)")
    use.add_argument("--node", default="*", help="of this Node, or a pattern (default: any)")
    use.add_argument("--pod", default="*", help="of this pod, or a pattern: 'train-*' (default: any)")
    for name, path, text in (
        ("spot-interruption", "/interrupt-spot", "give spot instances their notice; those named, or all"),
        ("spot-rebalance", "/recommend-rebalance", "say that spot instances are at risk, as EC2 does before a notice"),
    ):
        act = add(name, text, _fault_spot, path=path)
        act.add_argument("--instance", help="by its id")
        act.add_argument("--node", help="by its Node's name")
        act.add_argument("--zone", help="all of a zone")
    upgrade = add("node-upgrade", "upgrade a node pool's nodes in mid-run, as GKE does by itself", _fault_node_upgrade)
    upgrade.add_argument("group", help="the node pool's name")
    restart = add("restart-apiserver", "restart the Kubernetes API server", _fault_restart_apiserver)
    restart.add_argument("--down-seconds", type=float, default=0.0, help="leave it down so long (default: 0)")
    hang = add("hang-apiserver", "let the Kubernetes API server answer nothing for a time", _fault_hang_apiserver)
    hang.add_argument("--seconds", type=float, required=True)
    add("cut-connections", "end all connections to the Kubernetes API server, watches too", _fault_cut_connections)
    add("clear", "end all faults", _fault_clear)


def _stockout(given: argparse.Namespace) -> dict[str, Any]:
    names = ("zone", "instance_type", "market", "code", "left")
    return {"stockouts": [{name: getattr(given, name) for name in names}]}


def _gpu_use(given: argparse.Namespace) -> dict[str, Any]:
    return {"gpu_uses": [{name: getattr(given, name) for name in ("utilization", "power", "memory", "node", "pod")}]}


def _speed(given: str) -> float:
    speed = float(given)
    if not 0 < speed < float("inf"):
        raise argparse.ArgumentTypeError(f"a number above 0; not {given}")
    return speed


def _age(given: str) -> float:
    seconds = float(given)
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"a number of seconds, at least 0; not {given}")
    return seconds


def _engines(given: str) -> tuple[str, ...]:
    from gpu_sandbox.engines import with_needed

    try:
        return with_needed(given.split(","))  # type: ignore[arg-type]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _folder(given: str) -> Path:
    if not Path(given).is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {given}")
    return Path(given)


def _checked_image(given: str) -> str:
    """PATTERN=FOLDER with the folder's absolute path, as the supervisor may work in another folder."""
    pattern, separator, folder = given.partition("=")
    if not pattern or not separator or not Path(folder).is_dir():
        raise argparse.ArgumentTypeError(f"PATTERN=FOLDER with an existing folder; not {given!r}")
    return f"{pattern}={Path(folder).absolute()}"


def _image(given: str) -> Image:
    from gpu_sandbox.sandbox import python_image

    pattern, _, folder = given.partition("=")
    return python_image(pattern, folder=Path(folder))


if __name__ == "__main__":
    sys.exit(main())
