"""The test that docs/reference/testing.md shows: readers copy it, so it passes as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from gpu_sandbox.sandbox import Sandbox

PAGE = Path(__file__).parents[2] / "docs/reference/testing.md"


def test_the_page_s_test_passes(gpu_sandbox: Sandbox, gpu_sandbox_env: dict[str, str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, str(PAGE), "exec"), names)
    names["test_a_night"](gpu_sandbox, gpu_sandbox_env)
