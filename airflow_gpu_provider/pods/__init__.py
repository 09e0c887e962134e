"""The pod of a task on a GPU pool, from its placement to its result: how it is built, waited for, judged and released.

It contains no operator or trigger: those are thin, and call this package.
"""
