"""A transformer without a line of parallel code.

Belongs here: layers and how they start. What ranks share of a map comes in through `maths`.
"""
