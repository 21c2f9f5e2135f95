"""Properties are not timed: a speed is shown by a benchmark."""

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
