"""What this package adds to Airflow's web UI."""
