"""Memory by the page: fresh in large ones, or read where it lies by the other ranks on its host.

Belongs here: making it, finding that of another process, and giving it up. No order of additions.
"""
