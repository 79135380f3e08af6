"""The cluster around a simulated controller: it carries out commands, and tells what happens.

Belongs here: what the actors and Ray are in life, as seen by the controller, with its own outages.
"""
