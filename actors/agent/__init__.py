"""The one actor of a node: it owns the node's ranks and vault, and carries their words.

Belongs here: how ranks are forked, watched, addressed and ended, and what goes between agent and
controller.
"""
