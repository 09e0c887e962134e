"""How a platform provides a pool: a folder for each cloud, behind the questions in `base`.

Nothing here knows of operators, sensors or triggers. Cloud SDKs are imported where they are used.
"""
