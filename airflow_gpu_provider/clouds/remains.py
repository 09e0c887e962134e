"""What is left of pools, by their names: what clouds and clusters list of them, each asked in its own `remains` module.

None of it is what this package has written down, or what `Platform.observe` reads. Lists are taken whole, and searched
by name and by the cloud's own tags, so that a thing whose tag of ours is missing is found too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pkgutil import resolve_name

from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.pools import GpuPool

_CLUSTER = "airflow_gpu_provider.clouds.kubernetes.remains:remains"

# By the kind of pool: who is asked.
_ASKED = {
    "eks": ("airflow_gpu_provider.clouds.aws.remains:remains", _CLUSTER),
    "gke": ("airflow_gpu_provider.clouds.google.remains:remains", _CLUSTER),
    "kubernetes": (_CLUSTER,),
}


@dataclass(frozen=True, kw_only=True)
class Listed:
    """One list, and what of the pools is in it.

    Attributes:
        what: What was listed, and of whom it was asked.
        left: What is left, each with its state.
        unasked: Why there is no answer; empty where there is one.
        costs: It costs money, or keeps another pool of the name from a clean start.
    """

    what: str
    left: tuple[str, ...] = ()
    unasked: str = ""
    costs: bool = True

    def __str__(self) -> str:
        return f"{self.what}: unknown: {self.unasked}" if self.unasked else f"{self.what}: {', '.join(self.left)}"


def remains(*names: str, pool: GpuPool) -> list[Listed]:
    """Return what is listed of pools with these names, in the account and the cluster of a (rendered) pool.

    A list that cannot be read says why (`Listed.unasked`); nothing is raised for it.
    """
    return [each for place in _ASKED[pool.kind] for each in resolve_name(place)(*names, pool=pool)]


def listed(what: str, look: Callable[[], Iterator[str]], *, costs: bool = True) -> Listed:
    """Read one list."""
    try:
        return Listed(what=what, left=tuple(look()), costs=costs)
    except GpuError as error:
        return Listed(what=what, unasked=f"{type(error).__name__}: {error}", costs=costs)
