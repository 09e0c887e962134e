"""`airflow gpu accept`: whether this package works on one real account, found out by running it there.

The steps drive the package's own operators, as a worker and a triggerer would; nothing of them is done in another way.
What is looked at afterwards is the cloud's own answer, and no record of this package.
"""
