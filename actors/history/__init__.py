"""What a run has done, as its journals prove it.

They are written by the controller and read by whoever asks later: as events, as the state that
they lead to, as the steps that the run stands on. Nothing here knows how a run is reached.
"""
