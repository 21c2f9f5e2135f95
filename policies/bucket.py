"""The arithmetic of limits, in whole microseconds: GCRA, days and months.

A rate is a bucket that refills evenly. GCRA (ITU-T I.371, the generic cell rate algorithm) keeps one number of it: the
theoretical arrival time `tat`, which is when the bucket would be full again. What is taken is time, too: `amount` is
how long the rate needs to bring it.

    level   tat - now, 0 at least: what is missing from a full bucket
    passes  level + amount <= burst
    then    tat = now + level + amount

So within any time T no more than burst + T passes, wherever T begins: there are no windows, and no edges of them.
Giving back is a negative amount. A `tat` that is past means a full bucket, never more than that.

Tokens become whole microseconds. From a millisecond on they are rounded down: who keeps exactly to a rate that does
not divide a minute must not be refused in the end for the parts of microseconds, and no more than a thousandth is given
away. Less than a millisecond is rounded up, or a token of a very high rate would cost nothing; there a burst is a
microsecond longer for each of its first PIECES tokens, so that as many takes of one pass.
"""

from datetime import UTC, datetime, timedelta

MS_US = 1_000
SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
HOUR_US = 60 * MINUTE_US
DAY_US = 24 * HOUR_US

PIECES = 1000  # of a burst, each rounded up

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


# Tokens and time.


def amount_us(tokens: int, per_minute: int) -> int:
    """Say how long a rate needs to bring so many tokens (or requests)."""
    whole_us = tokens * MINUTE_US
    us = whole_us // per_minute
    return us + 1 if us < MS_US and us * per_minute < whole_us else us


def burst_us(tokens: int, per_minute: int) -> int:
    """Say how much a bucket holds that lets a burst of so many tokens pass, taken in PIECES at the most."""
    return amount_us(tokens, per_minute) + (min(tokens, PIECES) if amount_us(1, per_minute) < MS_US else 0)


def tokens_in(us: int, per_minute: int) -> int:
    """Count the whole tokens that a rate brings within so long, as `amount_us` rounded them."""
    return (us + (us >= MS_US)) * per_minute // MINUTE_US


def whole_ms(us: int) -> int:
    """Turn a wait into milliseconds, rounded up: who comes back then is not too early."""
    return -(-us // MS_US)


# A bucket.


def level_us(tat_us: int, now_us: int) -> int:
    """Say what is missing from a full bucket, which is how long it takes to be full again."""
    level = tat_us - now_us
    return level if level > 0 else 0


def wait_us(level_us: int, amount: int, burst: int) -> int:
    """Say how long until an amount passes that is within the burst; 0: now."""
    return max(0, level_us + amount - burst)


# Days and months, UTC.


def day_end_us(now_us: int) -> int:
    """Say when the day ends, as microseconds since 1970."""
    return now_us - now_us % DAY_US + DAY_US


def month_end_us(now_us: int) -> int:
    """Say when the month ends, as microseconds since 1970."""
    first = (EPOCH + timedelta(days=now_us // DAY_US)).replace(day=1)
    return ((first + timedelta(days=31)).replace(day=1) - EPOCH).days * DAY_US
