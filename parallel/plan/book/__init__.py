"""The rule book: what a model, a batch and the degrees of a mesh allow, and what it says.

Belongs here: rules, their cures, and the sentences made of them. It knows nothing but numbers: what
makes layouts and models of them asks it.
"""
