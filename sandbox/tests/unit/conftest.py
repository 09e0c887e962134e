"""The profile of the provider's property tests: no deadline for an example."""

import tests.unit.conftest  # noqa: F401
