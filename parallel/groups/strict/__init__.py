"""A group with a device's manners, on CPUs: it names what only a GPU would show, and not by a hang.

Belongs here: the referee that compares what all ranks do, and buffers in flight. No training.
"""
