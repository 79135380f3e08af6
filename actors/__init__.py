"""Act: Ray, clocks, threads, processes.

At the top stand only the orders that its rooms hand to each other.
"""
