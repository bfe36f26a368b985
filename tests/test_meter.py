"""How the time of a machine that is paid by the hour is shared out."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from proxy.meter import Meter


def test_time_alone_is_ones_own_and_time_together_is_halved() -> None:
    """Four seconds alone, four with another, who has two more alone: six and four of ten."""
    meter = Meter()
    first = meter.come(10.0)
    second = meter.come(14.0)
    assert meter.go(18.0) - first == Decimal(6)
    assert meter.go(20.0) - second == Decimal(4)


def test_nobodys_time_is_not_counted() -> None:
    """An idle machine costs nobody's request anything."""
    meter = Meter()
    meter.come(4.0)
    meter.go(5.0)
    came = meter.come(1000.0)
    assert meter.go(1001.0) - came == Decimal(1)


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 1000)), min_size=1, max_size=12))
def test_all_shares_together_are_the_busy_time(stays: list[tuple[int, int]]) -> None:
    """Whoever comes and goes when: nothing is lost and nothing is paid twice."""
    meter, came, shares = Meter(), {}, Decimal(0)
    moments = [(begin, 1, number) for number, (begin, _) in enumerate(stays)]
    moments += [(begin + length, 0, number) for number, (begin, length) in enumerate(stays)]
    for moment, comes, number in sorted(moments):
        if comes:
            came[number] = meter.come(float(moment))
        else:
            shares += meter.go(float(moment)) - came[number]
    busy = len({second for begin, length in stays for second in range(begin, begin + length)})
    assert abs(shares - busy) < Decimal("1e-15")
