"""Everything that is said to a Kubernetes API server. Knows no cloud, no operator, no trigger.

`access` connects; `leases` keeps this package's Leases; `nodes` and `pods` turn raw objects into small records;
`apply` writes manifests; `informer` and `events` watch.
"""
