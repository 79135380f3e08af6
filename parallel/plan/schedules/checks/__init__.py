"""Whether lists of operations are a step: nothing missing, doubled, too early or in vain.

Belongs here: what is checked of any schedule, whoever made it, and what a list keeps meanwhile.
"""
