"""Pools on Amazon EKS: managed node groups and the Auto Scaling groups behind them, by AWS's APIs."""
