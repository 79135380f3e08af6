"""The beats of a rank or a vault, for as long as its lease is renewed.

The lease counts the time in which this process ran: one that stood still, with the whole machine
perhaps, could not see it renewed.
"""

import time

from remesh.actors.node.own_time import OwnTime
from remesh.actors.node.stamps import Field, Stamps
from remesh.orchestrator.job.timers import Timers


def beat_while_leased(stamps: Stamps, timers: Timers) -> None:
    """Returns when the lease has lapsed."""
    every_s = timers.silent_s / 5
    own, leased_ns, leased_s = OwnTime(every_s), stamps[Field.LEASE_NS], 0.0
    while own.now_s() - leased_s < timers.lease_s:
        stamps[Field.BEAT_NS] = time.monotonic_ns()
        if stamps[Field.LEASE_NS] != leased_ns:
            leased_ns, leased_s = stamps[Field.LEASE_NS], own.now_s()
        time.sleep(every_s)
