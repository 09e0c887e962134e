"""What EnsureGpuPoolOperator's arguments may be, as far as that is known when the DAG is parsed."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.pools.values import is_dns_subdomain, is_template, is_whole

_EXAMPLES = {"prefetch": "registry.example.com/train:1", "prefetch_secrets": "regcred"}

# The grammar of github.com/distribution/reference: [host[:port]/]path[:tag][@digest].
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(?::\d+)?"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*(?::\w[\w.-]{{0,127}})?(?:@[A-Za-z][\w+.-]*:[0-9A-Fa-f]{{32,}})?", re.ASCII
)
_NAMES: Mapping[str, Callable[[str], object]] = {"prefetch": _REFERENCE.fullmatch, "prefetch_secrets": is_dns_subdomain}


def check_arguments(ensure: Any) -> None:
    """Check the arguments of an Ensure, but for its counts of nodes.

    Raises:
        PoolSpecError: One is none of its values, or two exclude each other.
    """
    if ensure.wait_for not in ("ready", "gpus"):
        raise PoolSpecError(f"wait_for={ensure.wait_for!r}.", 'It is "ready" or "gpus".')
    if ensure.all_or_nothing and ensure.at_least is not None:
        raise PoolSpecError(
            f"at_least={ensure.at_least} and all_or_nothing=True exclude each other.",
            "at_least continues with fewer nodes; all_or_nothing releases them and tries again.",
        )
    if ensure.give_up_after is not None:
        _check_give_up_after(ensure.give_up_after, ensure.wait_timeout, ensure.gpu_pool)
    _check_no_nodes(ensure)
    if ensure.max_cost is not None:
        from airflow_gpu_provider.money.budget import check_max_cost

        check_max_cost(ensure.gpu_pool, ensure.max_cost)
    check_names(prefetch=ensure.prefetch, prefetch_secrets=ensure.prefetch_secrets)


def check_names(**arguments: Any) -> None:
    """Raise PoolSpecError if one of the arguments is not a list of names: images' references, or Secrets' names."""
    for argument, names in arguments.items():
        like = f'like ["{_EXAMPLES[argument]}"]'
        if isinstance(names, list | tuple) and all(isinstance(each, str) and each for each in names):
            if wrong := [each for each in names if not is_template(each) and not _NAMES[argument](each)]:
                what = "image's reference" if argument == "prefetch" else "Secret's name"
                raise PoolSpecError(f"{argument} has {wrong[0]!r}, which is no {what}.", f"Write them {like}.")
        elif not is_template(names):
            raise PoolSpecError(f"{argument}={names!r}.", f"It is a list of names, {like}.")


def _check_no_nodes(ensure: Any) -> None:
    """Refuse nodes=0 beside arguments that say something of nodes; raises PoolSpecError, as it does for no bool."""
    if not isinstance(ensure.keep, bool):
        name = getattr(ensure.gpu_pool, "name", None)
        of_pool = f" for pool {name}" if name else ""
        raise PoolSpecError(f"keep={ensure.keep!r}{of_pool}.", "It is True or False.")
    given = [name for name in ("keep", "max_cost", "prefetch") if getattr(ensure, name)]
    if is_whole(ensure.nodes) and int(ensure.nodes) == 0 and given:
        fix = f"Leave {given[0]} out, or want nodes."
        raise PoolSpecError(
            f"nodes=0 requests no node, and {given[0]}={getattr(ensure, given[0])!r} is for nodes.", fix
        )


def _check_give_up_after(give_up_after: timedelta, timeout: timedelta, pool: Any) -> None:
    """Refuse a `give_up_after` that is shorter than one attempt, and warn of one that allows no second one.

    Raises:
        PoolSpecError: It is shorter than `timeout`.
    """
    from airflow_gpu_provider.clouds.backoff import FIRST

    if give_up_after < timeout:
        raise PoolSpecError(
            f"give_up_after={give_up_after} is shorter than timeout={timeout}, one attempt's time.",
            "Raise give_up_after, or lower the timeout.",
        )
    if give_up_after <= FIRST and getattr(pool, "scaling", None) == "direct":
        warnings.warn(
            f"give_up_after={give_up_after} allows one try of each zone and type: one that has no"
            f" capacity is not tried again for {FIRST}. Raise give_up_after.",
            stacklevel=2,
        )
