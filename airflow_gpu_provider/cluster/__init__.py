"""Everything that is said to a Kubernetes API server. Knows no cloud, no operator, no trigger.

`access` connects; `demand` keeps leases and the lock; `nodes` and `pods` turn raw objects into small records;
`apply` writes manifests; `informer` and `events` watch.
"""
