"""Airflow triggers: small versioned records that wait. They never raise; they yield a record."""
