"""Computes: torch, groups, state.

At its top stands only what a step depends on besides the data and the mesh.
"""
