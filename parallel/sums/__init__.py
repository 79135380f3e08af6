"""Gradients of all ranks, added up in one order or in any.

Belongs here: where backward puts gradients, and how they become their sum.
"""
