"""How many nodes a pool should have: pure decisions, and the reconcile that carries one out under the lock.

`snapshot` is a decision's input, `decisions` decides without I/O, `reconcile` reads, decides and writes, `waits`
decides whether a wait is over. Operators, sensors and triggers drive these.
"""
