"""What befalls a simulated run: which kinds there are, and what each does to the cluster.

Belongs here: faults of nodes, links, storage and people. How the machine takes them does not.
"""
