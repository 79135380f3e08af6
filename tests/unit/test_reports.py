"""What a worker tells of its steps, and when."""

from control_values import record

from remesh.orchestrator.worker.reports import EVERY_S, TELLERS, Reports, remembers

REMEMBER_S = 40.0


def reports(rank=0, size=2):
    one = Reports(remember_s=REMEMBER_S)
    one.enter(rank, size)
    return one


def test_the_first_record_goes_at_once_the_next_ones_together():
    rank_0 = reports()
    first, second, third, fourth = (record(step) for step in (1, 2, 3, 4))
    assert rank_0.add(first, 10.0) == (first,)
    assert rank_0.add(second, 10.5) == ()
    assert rank_0.add(third, 10.0 + EVERY_S) == (second, third)
    assert rank_0.add(fourth, 10.1 + EVERY_S) == ()
    assert rank_0.rest() == (fourth,)
    assert rank_0.rest() == ()


def test_messages_do_not_grow_with_the_step_rate():
    rank_0 = reports()
    sent = [rank_0.add(record(step), step / 1000) for step in range(1, 1001)]
    assert len([one for one in sent if one]) == 1


def test_the_other_ranks_only_remember():
    other = reports(rank=1)
    kept = [record(step) for step in (5, 6, 7)]
    assert [other.add(one, 0.0) for one in kept] == [(), (), ()]
    assert other.rest() == ()
    other.heard(5)
    assert other.unheard() == tuple(kept[1:])
    other.heard(3)
    assert other.unheard() == tuple(kept[1:])


def test_nothing_is_forgotten_that_is_younger_than_the_leases_however_quick_the_steps_are():
    """A16: 4,096 records were 20 s of a quick job."""
    other = reports(rank=1)
    steps = round(REMEMBER_S / 0.004)
    for step in range(1, 2 * steps + 1):
        other.add(record(step, step_s=0.004), 0.0)
    kept = [one.step for one in other.unheard()]
    assert kept[-1] == 2 * steps
    assert steps - 1 <= len(kept) <= steps + 1


def test_a_standstill_amid_a_step_makes_nobody_forget():
    other = reports(rank=1)
    for step in range(1, 11):
        other.add(record(step), 0.0)
    other.add(record(11, step_s=3600.0), 0.0)
    other.add(record(12), 0.0)
    assert [one.step for one in other.unheard()] == list(range(1, 13))


def test_some_ranks_of_a_large_mesh_remember_for_all():
    assert all(remembers(rank, 64) for rank in range(64))
    of_many = [rank for rank in range(16_384) if remembers(rank, 16_384)]
    assert len(of_many) == TELLERS
    assert of_many[:2] == [0, 256]
    silent = reports(rank=1, size=16_384)
    silent.add(record(1), 0.0)
    assert silent.unheard() == ()


def test_steps_of_an_abandoned_generation_are_never_told_as_the_next_ones():
    rank_0 = reports()
    for step in (41, 42, 43):
        rank_0.add(record(step), 0.0)
    rank_0.heard(43)
    rank_0.enter(0, 2)  # from the checkpoint at 40
    again = record(41)
    assert rank_0.unheard() == rank_0.rest() == ()
    assert rank_0.add(again, 0.1) == (again,)
    assert rank_0.unheard() == (again,)
