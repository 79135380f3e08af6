"""What must hold of a simulated run, and what it has reached.

Belongs here: what looks at a run and says what is wrong with it. Nothing here changes a run.
"""
