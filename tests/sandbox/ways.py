"""The two ways in which a task waits: in its worker, and deferred to a triggerer.

How a pod, a gang or a workload ends is decided by its wait, the same for both ways: test_pod_wait.py,
test_pod_end.py, test_pod_verdict.py, test_gang_wait.py and test_workload_wait.py of tests/unit/training. So is what its
GPUs did (test_gpu_sampler.py, test_gang_sampler.py), and how long a refusal is borne (test_patience.py and
test_wait_loop.py of tests/unit/scaling/wait, and sensors/test_scale_down.py). Where nothing else is tested against the
real control plane, `make test` takes one way, and `make nightly` both.
"""

from __future__ import annotations

import pytest

_NIGHTLY = pytest.mark.nightly

BOTH_WAYS = pytest.mark.parametrize("deferrable", [False, True], ids=["blocking", "deferred"])
DEFERRED_BY_DAY = pytest.mark.parametrize(
    "deferrable", [pytest.param(False, marks=_NIGHTLY), True], ids=["blocking", "deferred"]
)
BLOCKING_BY_DAY = pytest.mark.parametrize(
    "deferrable", [False, pytest.param(True, marks=_NIGHTLY)], ids=["blocking", "deferred"]
)
