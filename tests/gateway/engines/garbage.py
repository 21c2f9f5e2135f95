"""Garbage to feed the readers with."""

from hypothesis import settings
from hypothesis import strategies as st

UNTIMED = settings(deadline=None)  # the machine may be busy

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
"""Whatever JSON can say, and a little that it cannot: NaN, integers of any size."""
