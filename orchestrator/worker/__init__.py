"""What a worker decides: words in, things to do out.

Actors carry them out, the simulator turns them into delays.

Belongs here: the machine of one worker, what it is told and what it wants done, as values. No
clock, no thread, no torch.
"""
