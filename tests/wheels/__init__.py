"""Both wheels as a user gets them: in an empty environment, a sandbox, a night by the example DAG, and nothing left.

`python -m tests.wheels FOLDER` takes the wheels of a folder, and needs nothing but Python: release.yml and
tests/airflow/test_wheels.py run it.
"""
