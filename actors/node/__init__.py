"""What stands for a node and its processes: lines, stamps, leases, logs.

Belongs here: signs of life in shared memory, what agents and their processes say to each other, how
processes are told apart and ended, and what the dead left.
"""
