"""How many nodes a pool should have, cut by question: how they go (end), how tasks wait for them (wait), how a decision
is carried out (apply), what it is (decide), and what it is taken from (state).

Operators, sensors and triggers drive these.
"""
