"""Airflow operators. Thin: they render, decide what to say, and drive `scaling`, `pods` and `addons`."""
