"""How long a node's pulls take: all at once over one disk, which writes so many bytes of images a second."""

from __future__ import annotations

import asyncio
import time

from gpu_sandbox.nodes import waits

_NONE_LEFT = 1.0  # of a byte: sums of fractions are never quite even
_WRITTEN = 3  # times: as a registry has it, and unpacked, which is about twice as much


def image_rate(disk: float) -> float:
    """Return how many bytes of images, as registries count them, a disk of so many MiB a second takes in a second."""
    return disk * 2**20 / _WRITTEN


class Transfers:
    """The images that are on their way, and how much of each is left; they share the disk evenly.

    Attributes:
        now: Seconds that have passed.
    """

    def __init__(self, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        self._left: dict[str, float] = {}
        self.now = 0.0

    def begin(self, name: str, size: float) -> None:
        self._left[name] = size

    def live(self, seconds: float) -> list[tuple[str, float]]:
        """Let so much time pass; return the images that are there then, and since when, in their order."""
        end, there = self.now + seconds, list[tuple[str, float]]()
        while self._left and (step := min(self.until_next(), end - self.now)) >= 0:
            written = step * self._rate / len(self._left)
            self._left = {name: left - written for name, left in self._left.items()}
            self.now += step
            done = [name for name, left in self._left.items() if left < _NONE_LEFT]
            there += [(name, self.now) for name in done]
            for name in done:
                del self._left[name]
            if not done:
                break
        self.now = end
        return there

    def until_next(self) -> float:
        """Return after how many seconds the next one is there; infinite where none is on its way."""
        return min(self._left.values(), default=float("inf")) * max(len(self._left), 1) / self._rate


class ImageTransfers:
    """A node's pulls of images whose size is known.

    Args:
        bytes_per_second: How much of images the node takes in a second, in registries' bytes.
        by_hand: Time passes by `live`; otherwise it is the machine's.
    """

    def __init__(self, bytes_per_second: float, *, by_hand: bool) -> None:
        self._transfers = Transfers(bytes_per_second)
        self._by_hand = by_hand
        self._at = time.monotonic()
        self._there: dict[str, asyncio.Future[float]] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def take(self, name: str, size: float, stopping: asyncio.Event) -> float:
        """Wait until the image is there, or `stopping`; return the seconds. Who else asks for it waits for the same."""
        if name not in self._there:
            self._catch_up()
            self._there[name] = asyncio.get_running_loop().create_future()
            self._transfers.begin(name, size)
            self._set_timer()
        began = self._transfers.now
        there = self._there[name]
        await waits.first(there, events=[stopping])
        return (there.result() if there.done() else self._transfers.now) - began

    def live(self, seconds: float) -> None:
        """Let so much time pass."""
        for name, at in self._transfers.live(seconds):
            self._there.pop(name).set_result(at)

    def _catch_up(self) -> None:
        now = time.monotonic()
        if not self._by_hand:
            self.live(now - self._at)
        self._at = now

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._by_hand and self._there:
            self._timer = asyncio.get_running_loop().call_later(self._transfers.until_next(), self._tick)

    def _tick(self) -> None:
        self._catch_up()
        self._set_timer()
