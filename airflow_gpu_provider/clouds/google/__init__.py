"""Pools on Google Kubernetes Engine: node pools and the managed instance groups behind them, by Google Cloud's APIs."""
