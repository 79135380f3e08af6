"""Who may come in at a port of ours.

Belongs here: listening, the bounded wait of those who have not said who they are, and the proof
that two processes know one secret. Nothing of what is said afterwards.
"""
