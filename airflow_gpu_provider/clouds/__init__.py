"""How a cloud provides a pool: a folder for each, behind the questions in `base`; and specs of any kind (`pool_kinds`).

Nothing here knows of operators, sensors or triggers. Cloud SDKs are imported where they are used.
"""
