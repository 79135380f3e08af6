import pytest

from remesh.parallel.optim.lr import LrCurve, lr_at


def test_warm_up_reaches_the_peak_at_its_last_step():
    curve = LrCurve(peak=1.0, warmup_steps=10)
    assert [lr_at(curve, step) for step in range(1, 13)] == pytest.approx(
        [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0, 1.0]
    )


def test_a_resumed_run_goes_on_with_the_next_step_and_not_one_further():
    curve = LrCurve(peak=1.0, warmup_steps=10)
    assert lr_at(curve, 5 + 1) == pytest.approx(0.6)


def test_cosine_falls_from_the_peak_to_its_floor_and_stays_there():
    curve = LrCurve(peak=1.0, kind="cosine", warmup_steps=4, min_lr=0.2, lr_steps=24)
    assert lr_at(curve, 4) == 1.0
    assert lr_at(curve, 14) == pytest.approx(0.6)
    assert lr_at(curve, 24) == lr_at(curve, 100) == pytest.approx(0.2)
    rates = [lr_at(curve, step) for step in range(4, 25)]
    assert rates == sorted(rates, reverse=True)


def test_no_warm_up_starts_at_the_peak_and_a_curve_may_end_within_it():
    assert lr_at(LrCurve(peak=0.5), 1) == 0.5
    short = LrCurve(peak=1.0, kind="cosine", warmup_steps=10, lr_steps=5)
    assert lr_at(short, 10) == 1.0
    assert lr_at(short, 11) == 0.0
