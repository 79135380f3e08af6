"""A run's answers and numbers over HTTP.

One server, whose requests are heard whole before anybody works for them, and the metrics of a run
at its two addresses. What is answered comes from outside.
"""
