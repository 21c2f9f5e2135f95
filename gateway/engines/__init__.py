"""One adapter an engine kind: what it is asked, how its answers are read, what it may be sent."""
