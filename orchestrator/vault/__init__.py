"""What a vault decides, and a rank about its snapshots: pure, for actors and simulator alike.

Belongs here: leases, slots, what is sealed, safe and stable, and what is told of; no memory, no
thread, no clock.
"""
