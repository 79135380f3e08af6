"""Other people's formats: Hugging Face, torch DCP.

Belongs here: reading and writing what others can read, without ever running a pickle.
"""
