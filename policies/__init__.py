"""Floor 1: pure decisions. Knows tokens, seconds and endpoints; not HTTP, JSON, Redis or asyncio.

Time comes in as `now` (monotonic seconds), chance as a seeded `random.Random`. Nothing here waits or does I/O, so the
gateway and the simulator run the very same code.
"""
