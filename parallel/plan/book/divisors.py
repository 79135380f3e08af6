"""What divides a number, and what it divides: the values that a rule offers instead of one."""

import math


def divisors(number: int) -> list[int]:
    """All divisors of a positive number, ascending."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def near_multiples(number: int, unit: int) -> list[int]:
    """The multiples of `unit` next to `number`, or itself; none is 0."""
    below = number - number % unit
    above = -(-number // unit) * unit
    return sorted({below, above} - {0})
