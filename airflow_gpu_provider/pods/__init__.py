"""The pod of a task on a GPU pool, from its placement to its result: how it is built, waited for, judged and let go.

Nothing here is an operator or a trigger: those are thin, and run what is here.
"""
