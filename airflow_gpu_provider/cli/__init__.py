"""`airflow gpu`: pools, plan, status, doctor and reap, for people at a terminal and for scripts."""
