"""What stands for a node: its agent, stamps, processes, bundle.

Belongs here: signs of life in shared memory, kills by pid, placement, and what the dead left.
"""
