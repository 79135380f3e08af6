"""Ways to share a model among ranks, one a file.

Belongs here: tensor, vocabulary and ZeRO sharding of weights, and backward in halves, for any model
of maps.
"""
