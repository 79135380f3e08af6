"""Who may come in at a port of ours.

Belongs here: listening, the bounded wait of those who have not said who they are, the proof that
two processes know one secret, and waking the thread that serves them. Nothing of what is said
afterwards.
"""
