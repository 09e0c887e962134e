"""A Kubernetes cluster: what is in it as records (`model`), and requests to its API server (`api`).

Knows no cloud, no operator, no trigger.
"""
