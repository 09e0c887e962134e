"""A node's EFA interfaces and huge pages, as EFA's device plugin and driver have them.

"Run machine learning training with EFA" in EKS's user guide: the driver sets 5128 huge pages of 2 MiB aside, and the
plugin, a DaemonSet that no image brings, advertises the interfaces.
"""

from __future__ import annotations

RESOURCE = "vpc.amazonaws.com/efa"
_HUGE_PAGES = {"hugepages-2Mi": f"{5128 * 2}Mi"}


class EfaPlugins:
    """The containers of the plugin that run on one node."""

    def __init__(self, interfaces: int) -> None:
        self._interfaces = interfaces
        self._running: list[object] = []
        self._ever = False

    def started(self, container: object) -> None:
        """It finds the node's interfaces, if there are any."""
        self._running.append(container)
        self._ever = self._ever or bool(self._interfaces)

    def ended(self, container: object) -> bool:
        """Return True if it was one of them."""
        was_there = container in self._running
        if was_there:
            self._running.remove(container)
        return was_there

    def capacity(self) -> dict[str, str]:
        """What the node has."""
        pages = _HUGE_PAGES if self._interfaces else {}
        return {**pages, **({RESOURCE: str(self._interfaces)} if self._ever else {})}

    def allocatable(self) -> dict[str, str]:
        """What pods may ask for now: a kubelet says 0 of what no plugin serves any more."""
        return {name: "0" if name == RESOURCE and not self._running else has for name, has in self.capacity().items()}
