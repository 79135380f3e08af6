"""The world of a simulation and what lives in it: processes, meshes, vaults.

Belongs here: time, network and storage of a simulated cluster, and what carries out decisions there
as delays.
"""
