"""How many nodes a pool should have: pure decisions, and the reconcile that carries one out under the lock.

`snapshot` is what a decision sees, `decisions` decides without I/O, `reconcile` reads, decides and writes, `waits`
says whether somebody who waits has what they waited for. Operators, sensors and triggers drive these.
"""
