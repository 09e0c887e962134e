"""The clouds' own schemas, checked against every request that the sandbox gets and every answer that it sends.

The sandbox answers as it answers; here stands what the schemas say against it. `findings` keeps that, and how many
calls were judged, for tests to fail by.
"""

from __future__ import annotations
