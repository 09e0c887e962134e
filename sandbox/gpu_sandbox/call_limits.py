"""CallLimits: how often an API may be called, by token buckets that fill with the cloud's time.

As "Request throttling for the Amazon EC2 API" describes it: a bucket of an account and region for each API action holds
so many tokens, each call takes one, and so many come back in a second. How large EKS's and Auto Scaling's are AWS
does not say.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu_sandbox.clock import Clock, SystemClock


@dataclass(kw_only=True)
class _Bucket:
    per_second: float
    burst: float
    tokens: float
    filled_at: float


class CallLimits:
    """Buckets by API, "eks:DescribeNodegroup", or by service, "eks". Not thread-safe."""

    def __init__(self) -> None:
        self._clock: Clock = SystemClock()
        self._buckets: dict[str, _Bucket] = {}

    def follow(self, clock: Clock) -> None:
        """Fill by this clock from now on."""
        self._clock = clock
        for bucket in self._buckets.values():
            bucket.filled_at = clock.now()

    def set(self, api: str, *, per_second: float, burst: float) -> None:
        """Limit an API; it may be called `burst` times at once. ValueError unless both are numbers above 0."""
        if not 0 < per_second < float("inf") or not 1 <= burst < float("inf"):
            raise ValueError(f"a limit has a rate above 0 and a burst of at least 1; not {per_second!r} and {burst!r}")
        now = self._clock.now()
        self._buckets[api] = _Bucket(per_second=per_second, burst=burst, tokens=burst, filled_at=now)

    def take(self, api: str) -> bool:
        """Return False if this call is one too many; it then takes no token."""
        names = (api, api.partition(":")[0])
        buckets = [self._filled(self._buckets[name]) for name in names if name in self._buckets]
        if any(bucket.tokens < 1 for bucket in buckets):
            return False
        for bucket in buckets:
            bucket.tokens -= 1
        return True

    def _filled(self, bucket: _Bucket) -> _Bucket:
        now = self._clock.now()
        bucket.tokens = min(bucket.burst, bucket.tokens + max(0.0, now - bucket.filled_at) * bucket.per_second)
        bucket.filled_at = now
        return bucket

    def describe(self) -> dict[str, dict[str, float]]:
        return {api: {"per_second": each.per_second, "burst": each.burst} for api, each in self._buckets.items()}
