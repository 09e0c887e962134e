"""Workloads: pods that belong together under one Kubernetes object, watched and ended as one.

It knows pods/, scaling/ and cluster/, and no operator, sensor or trigger.
"""
