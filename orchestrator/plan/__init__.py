"""Which meshes a run may have, and who computes where.

Belongs here: choices of layouts, devices and buddies, each a pure function of what there is.
"""
