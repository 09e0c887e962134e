"""Everything that is said to a Kubernetes API server. Knows no cloud, no operator, no trigger.

`access` connects; `rest` and `async_api` make requests; `leases` keeps this package's Leases; `nodes` and `pods` turn
raw objects into small records; `informer` and `events` watch.
"""
