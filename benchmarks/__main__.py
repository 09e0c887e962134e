"""`make bench`: run every measurement, print the table, write build/bench.json and the table in docs/performance.md."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from benchmarks import imports, waiting_pods
from benchmarks.figure import Figure, table

DOCUMENT = Path("docs/performance.md")
REPORT = Path("build/bench.json")
BEGIN, END = "<!-- begin of the table -->", "<!-- end of the table -->"


def main() -> None:
    figures: list[Figure] = [*imports.measure(), *waiting_pods.measure()]
    print("\n".join(table(figures)))
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps([asdict(figure) | {"ratio": figure.ratio} for figure in figures], indent=2) + "\n")
    text = DOCUMENT.read_text()
    head, rest = text.split(BEGIN)
    DOCUMENT.write_text("\n".join([head + BEGIN, *table(figures), END + rest.split(END)[1]]))


if __name__ == "__main__":
    main()
