"""What a rank needs of memory at the fullest moment of a step, by what takes it.

Belongs here: formulas over what the rest of the plan says, held against processes in tests/dist.
"""
