"""What this package knows of a pool: demand, lock and gangs in the cluster, and its own recent writes."""
