"""Memory of one rank that the others on its host read where it lies.

Belongs here: making it, finding that of another process, and giving it up. No order of additions.
"""
