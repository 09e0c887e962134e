"""What Airflow sends to StatsD of this package: it is told to send no other metrics."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Mapping

_OURS = "airflow.gpu_provider."


class Metrics:
    """Listens on loopback from its construction to `close`; `env` points Airflow to it."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._values: dict[tuple[str, frozenset[str]], float] = {}
        self._counts: Counter[tuple[str, frozenset[str]]] = Counter()
        self._thread = threading.Thread(target=self._listen, name="statsd", daemon=True)
        self._thread.start()

    @property
    def env(self) -> dict[str, str]:
        """Airflow's settings: in StatsD's form with tags, which is InfluxDB's."""
        return {
            "AIRFLOW__METRICS__STATSD_ON": "True",
            "AIRFLOW__METRICS__STATSD_HOST": "127.0.0.1",
            "AIRFLOW__METRICS__STATSD_PORT": str(self._socket.getsockname()[1]),
            "AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED": "True",
            # All of them would fill the socket's buffer while a busy machine lets this process stand still.
            "AIRFLOW__METRICS__METRICS_ALLOW_LIST": "^gpu_provider",
        }

    def gauges(self, **tags: str) -> Mapping[str, float]:
        """The last values of the gauges that had these tags, by their names after `gpu_provider`."""
        wanted = frozenset(f"{name}={value}" for name, value in tags.items())
        return {name: value for (name, of), value in list(self._values.items()) if of == wanted}

    def counts(self, **tags: str) -> Mapping[str, int]:
        """The sums of the counters that had these tags, by their names after `gpu_provider`."""
        wanted = frozenset(f"{name}={value}" for name, value in tags.items())
        return {name: count for (name, of), count in list(self._counts.items()) if of == wanted}

    def close(self) -> None:
        self._socket.sendto(b"", self._socket.getsockname())
        self._thread.join()
        self._socket.close()

    def _listen(self) -> None:
        while datagram := self._socket.recv(65536):
            for line in datagram.decode().splitlines():
                if line.startswith(_OURS):
                    self._take(*line.removeprefix(_OURS).rsplit("|", 1))

    def _take(self, line: str, kind: str) -> None:
        """Keep `name,tag=value,...:number` of a gauge, and add up a counter's."""
        stat, _, value = line.rpartition(":")
        name, *tags = stat.split(",")
        if kind == "g":
            self._values[name, frozenset(tags)] = float(value)
        elif kind == "c":
            self._counts[name, frozenset(tags)] += int(value)
