"""Attempts: a pod, a gang or a workload is created, waited for, judged, collected and released."""
