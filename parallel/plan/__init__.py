"""Pure: layouts, models, leaves, buckets and schedules in plain integers.

Belongs here: all that follows from sizes and degrees, without torch. The orchestrator may import
this room, and of parallel hardly anything else.
"""
