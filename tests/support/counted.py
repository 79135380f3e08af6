"""What a call costs, counted in lines and calls of Python: the same on a busy machine.

What happens inside one call of C code is not seen; benchmarks/planning.py takes the times.
"""

import sys
from collections import Counter


def lines_run(function, *args):
    """How many lines of Python run until the function has returned, each time one runs."""
    count = 0

    def note(_frame, _event, _arg):
        nonlocal count
        count += 1
        return note

    before = sys.gettrace()
    sys.settrace(note)
    try:
        function(*args)
    finally:
        sys.settrace(before)
    return count


def calls_made(function, *args):
    """How often each function of Python was called meanwhile, by its qualified name."""
    counts = Counter()

    def note(frame, event, _arg):
        if event == "call":
            counts[frame.f_code.co_qualname] += 1

    _profiled(note, function, *args)
    return counts


def c_calls(name, function, *args):
    """How often something of this name outside Python was called meanwhile."""
    count = 0

    def note(_frame, event, called):
        nonlocal count
        count += event == "c_call" and called.__name__ == name

    _profiled(note, function, *args)
    return count


def growth(cost, small, large):
    """How much more `cost(large)` is than `cost(small)`, for each that `large` is more.

    About 1 where the cost is in proportion to the size, `large / small` where to its square.
    """
    return cost(large) / cost(small) * small / large


def _profiled(note, function, *args):
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function(*args)
    finally:
        sys.setprofile(before)
