"""What clouds list of prices, asked for once for all waits of a process, and never at the cost of a run.

Prices are for reports and limits. Where the cloud refuses to say one, is slow, or has none, it is unknown for a while,
with the reason, and everything else goes on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Generic, TypeVar

from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.money.prices import ListPrices
from airflow_gpu_provider.pools import Candidate

KEPT_FOR = timedelta(minutes=15)
"""How long a process holds a price for the present one; spot prices change some times a day."""

ASKED_AGAIN_AFTER = timedelta(minutes=5)
"""How long it does not ask again where the cloud did not say."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Unknown:
    """Why there is no price."""

    why: str


Price = float | Unknown


class Kept(Generic[T]):
    """What a process has asked a cloud, by a key that says what and as whom; thread-safe.

    Of threads that ask for the same at one time, one does and the others wait for it.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.RLock()
        self._found: dict[Hashable, tuple[float, T | Unknown]] = {}
        self._took: dict[Hashable, float] = {}

    def get(self, key: Hashable, read: Callable[[], T]) -> T | Unknown:
        """Return what `read` returned lately, or now; for its error, why there is nothing."""
        with self._lock:
            until, found = self._found.get(key, (float("-inf"), Unknown(why="")))
            if (began := self._monotonic()) >= until:
                try:
                    found = read()
                except GpuError as error:
                    found = Unknown(why=error.what.rstrip("."))
                except Exception as error:  # noqa: BLE001 - no form of an answer may stop a run
                    found = Unknown(why=f"the answer could not be read ({error!r})")
                self._took[key] = self._monotonic() - began
                held = ASKED_AGAIN_AFTER if isinstance(found, Unknown) else KEPT_FOR
                self._found[key] = self._monotonic() + held.total_seconds(), found
            return found

    def seconds(self, key: Hashable) -> float:
        """Return how long it took to read what there is; 0 before that."""
        return self._took.get(key, 0.0)

    def forget(self) -> None:
        """Ask again for all."""
        with self._lock:
            self._found.clear()


def list_prices(candidates: Iterable[Candidate], price: Callable[[Candidate], Price]) -> ListPrices:
    """Return the prices of candidates; `price` returns that of one."""
    found: Mapping[str, Price] = {each.group: price(each) for each in candidates}
    return ListPrices(
        at=datetime.now(UTC).replace(microsecond=0),
        per_hour={group: each for group, each in found.items() if not isinstance(each, Unknown)},
        unknown={group: each.why for group, each in found.items() if isinstance(each, Unknown)},
    )
