"""Everything that is said to a Kubernetes API server.

`access` connects; `rest` and `async_api` make requests; `leases` keeps this package's Leases; `nodes` and `pods` read
and write theirs; `informer` watches what `watched` names; `clock` is the server's.
"""
