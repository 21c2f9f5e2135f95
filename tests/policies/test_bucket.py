"""Bucket: whole microseconds, rounded so that errors never admit more."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from policies import bucket
from policies.bucket import DAY_US, EPOCH, MINUTE_US

rates = st.integers(1, 10**8)
times = st.integers(0, 2**52)


def test_a_minute_brings_what_a_minute_should() -> None:
    assert bucket.amount_us(1000, 1000) == MINUTE_US
    assert bucket.tokens_in(MINUTE_US, 1000) == 1000


@given(st.integers(0, 10**7), rates)
def test_tokens_are_the_same_there_and_back(tokens: int, per_minute: int) -> None:
    back = bucket.tokens_in(bucket.amount_us(tokens, per_minute), per_minute)
    assert tokens <= back <= tokens + per_minute // MINUTE_US


@given(st.integers(1, 200), st.integers(1, 200_000))
def test_a_burst_lets_its_tokens_pass_one_by_one_and_not_one_more(tokens: int, per_minute: int) -> None:
    burst, level, passed = bucket.burst_us(tokens, per_minute), 0, 0
    assert bucket.tokens_in(burst, per_minute) == tokens
    while bucket.wait_us(level, bucket.amount_us(1, per_minute), burst) == 0:
        level += bucket.amount_us(1, per_minute)
        passed += 1
    assert passed == tokens


@given(st.integers(1, 10**6), rates)
def test_a_burst_passes_at_once_and_what_is_beyond_it_never(tokens: int, per_minute: int) -> None:
    burst = bucket.burst_us(tokens, per_minute)
    assert bucket.amount_us(tokens, per_minute) <= burst
    slack = (bucket.PIECES + 2) * per_minute // MINUTE_US  # roundings
    assert burst <= bucket.amount_us(tokens + 1 + slack, per_minute)
    assert tokens <= bucket.tokens_in(burst, per_minute) <= tokens + 1 + slack


def test_waits_are_rounded_up() -> None:
    assert [bucket.whole_ms(us) for us in (0, 1, 1000, 1001)] == [0, 1, 1, 2]


@given(times, times, st.integers(0, 10**9), st.integers(0, 10**9))
def test_what_waited_as_long_as_it_was_told_passes_and_not_a_microsecond_earlier(
    tat: int, now: int, amount: int, more: int
) -> None:
    burst = amount + more

    def wait_at(then: int) -> int:
        return bucket.wait_us(bucket.level_us(tat, then), amount, burst)

    wait = wait_at(now)
    assert wait_at(now + wait) == 0
    assert not wait or wait_at(now + wait - 1) == 1


@given(
    st.integers(1, 1000),
    st.lists(st.tuples(st.integers(0, 500), st.integers(0, 1000)), min_size=1, max_size=60),
)
def test_within_any_time_no_more_passes_than_the_burst_and_what_the_rate_brings(
    burst: int, arrivals: list[tuple[int, int]]
) -> None:
    tat, now = 0, 0
    passed: list[tuple[int, int]] = []
    for gap, amount in arrivals:
        now += gap
        level = bucket.level_us(tat, now)
        if bucket.wait_us(level, amount, burst) == 0:
            tat = now + level + amount
            passed.append((now, amount))
    for first, (begin, _) in enumerate(passed):
        total = 0
        for at, amount in passed[first:]:
            total += amount
            assert total <= burst + at - begin


@given(st.datetimes(datetime(1970, 1, 1), datetime(2254, 1, 1)))
def test_a_period_ends_at_the_next_midnight_and_at_the_next_first(when: datetime) -> None:
    now = (when.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
    day = EPOCH + timedelta(microseconds=bucket.day_end_us(now))
    month = EPOCH + timedelta(microseconds=bucket.month_end_us(now))
    assert day == datetime(when.year, when.month, when.day, tzinfo=UTC) + timedelta(days=1)
    assert month == datetime(when.year + when.month // 12, when.month % 12 + 1, 1, tzinfo=UTC)
    assert now < bucket.day_end_us(now) <= now + DAY_US
