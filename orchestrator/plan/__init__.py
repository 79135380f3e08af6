"""Which meshes a run may have, and who computes where.

Belongs here: the ladder of meshes, made once from the job, and the choices of devices and buddies,
each a pure function of what there is.
"""
