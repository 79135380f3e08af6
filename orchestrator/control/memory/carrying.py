"""What a run has learned and was asked for, for its next start, and taken up by it."""

from remesh.orchestrator.control.memory.quarantine import HostLosses
from remesh.orchestrator.control.memory.state import State
from remesh.orchestrator.control.words.carried import Carried, LostHost
from remesh.orchestrator.control.words.recovery import is_of_checkpoint


def carried_of(state: State) -> Carried:
    """A run that ended by its budget has next to none left: one more failure ends it again.

    What ranks and vaults held is gone with them, and another state may be at the same step then.
    """
    hosts = sorted(state.quarantine.hosts.items())
    budget = state.budget
    return Carried(
        hosts=tuple(LostHost(host=host, losses=of.count, last_s=of.last_s) for host, of in hosts),
        bad_sources=tuple(
            (label, failures)
            for label, failures in sorted(state.checkpoints.restore_failures.items())
            if is_of_checkpoint(label)
        ),
        failures=budget.failures,
        at_step=budget.at_step,
        cause=budget.cause,
        layout=state.asked_layout,
        bit_key=state.bit_key,
    )


def take_up(state: State, carried: Carried) -> None:
    """Failures are forgiven by healthy progress, as those of one start are."""
    for one in carried.hosts:
        state.quarantine.hosts[one.host] = HostLosses(count=one.losses, last_s=one.last_s)
    state.checkpoints.restore_failures = dict(carried.bad_sources)
    budget = state.budget
    budget.failures, budget.at_step = carried.failures, carried.at_step
    budget.cause = carried.cause
    state.asked_layout, state.bit_key = carried.layout, carried.bit_key
