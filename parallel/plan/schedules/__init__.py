"""A step as data: the operations that each rank carries out, in order, and what makes them a step.

Belongs here: the operations, the schedules that are made of them, and the check of any schedule.
"""
