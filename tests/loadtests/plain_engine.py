"""PlainEngine: the same engine as EngineModel, written for the eye: token by token, block by block, no leaps.

What it says is what EngineModel must say, to the last event.
"""

from collections import OrderedDict

from loadtests.profiles import Profile
from loadtests.sequence import Event, Generation, Id, What

BLOCK = 16


class Plain:
    """A sequence."""

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self.made = 0
        self.cached = -1
        self.reset()

    def reset(self) -> None:
        self.computed = 0
        self.is_prefilling = True
        self.target = self.generation.prompt_tokens + self.made
        self.shared: list[int] = []
        self.private = 0

    @property
    def context(self) -> int:
        return self.generation.prompt_tokens + self.made


class PlainEngine:
    """One engine."""

    def __init__(self, profile: Profile, capacity: int, budget: int, max_num_seqs: int) -> None:
        self.profile = profile
        self.capacity = capacity
        self.budget = budget
        self.max_num_seqs = max_num_seqs
        self.users: dict[int, int] = {}
        self.idle: OrderedDict[int, None] = OrderedDict()
        self.running: list[Plain] = []
        self.waiting: list[Plain] = []
        self.events: list[Event] = []
        self.plan: list[tuple[Plain, int]] = []
        self.ends_at: float | None = None

    def used(self) -> int:
        return len(self.users) + sum(plain.private for plain in self.running)

    def take(self, plain: Plain, count: int) -> None:
        plain.private += count
        while self.used() + len(self.idle) > self.capacity:
            self.idle.popitem(last=False)

    def share(self, plain: Plain) -> None:
        """Make blocks whose tokens are computed shareable."""
        full = min(plain.computed // BLOCK, len(plain.generation.blocks))
        for block in plain.generation.blocks[len(plain.shared) : full]:
            if block in self.users:
                self.users[block] += 1  # and the own copy is kept
            else:
                self.idle.pop(block, None)
                self.users[block] = 1
                plain.private -= 1
            plain.shared.append(block)

    def release(self, plain: Plain) -> None:
        self.share(plain)
        for block in reversed(plain.shared):
            self.users[block] -= 1
            if not self.users[block]:
                del self.users[block]
                self.idle[block] = None
        plain.shared, plain.private = [], 0

    def submit(self, generation: Generation, now: float) -> None:
        self.waiting.append(Plain(generation))

    def abort(self, id: Id, now: float) -> bool:
        for line in (self.running, self.waiting):
            for plain in line:
                if plain.generation.id == id:
                    self.release(plain)
                    line.remove(plain)
                    self.plan = [(other, size) for other, size in self.plan if other is not plain]
                    return True
        return False

    def preempt(self) -> Plain:
        plain = self.running[-1]
        self.release(plain)
        self.running.pop()
        plain.reset()
        self.waiting.insert(0, plain)
        self.events.append(Event(What.PREEMPTED, plain.generation.id, plain.cached))
        return plain

    def begin(self, now: float) -> float | None:
        if not self.running and not self.waiting:
            return None
        preempted = False
        while True:
            decodes = [plain for plain in self.running if not plain.is_prefilling]
            needy = [plain for plain in decodes if plain.context % BLOCK == 1]
            if len(needy) <= self.capacity - self.used():
                break
            self.preempt()
            preempted = True
        for plain in needy:
            self.take(plain, 1)
        budget = self.budget - len(decodes)
        self.plan = []
        for plain in [plain for plain in self.running if plain.is_prefilling]:
            if budget <= 0 or plain not in self.running:
                break
            size = min(plain.target - plain.computed, budget)
            need = -(-(plain.computed + size) // BLOCK) - -(-plain.computed // BLOCK)
            while plain in self.running and need > self.capacity - self.used():
                victim = self.preempt()
                budget += 1 if victim in decodes else 0
                preempted = True
            if plain in self.running:
                self.take(plain, need)
                self.plan.append((plain, size))
                budget -= size
        while not preempted and self.waiting and budget > 0 and len(self.running) < self.max_num_seqs:
            plain = self.waiting[0]
            limit = min((plain.target - 1) // BLOCK, len(plain.generation.blocks))
            hits: list[int] = []
            for block in plain.generation.blocks[:limit]:
                if block not in self.users and block not in self.idle:
                    break
                hits.append(block)
            size = min(plain.target - len(hits) * BLOCK, budget)
            need = -(-(len(hits) * BLOCK + size) // BLOCK) - len(hits)
            if need + sum(block in self.idle for block in hits) > self.capacity - self.used():
                break
            self.waiting.pop(0)
            for block in hits:
                self.idle.pop(block, None)
                self.users[block] = self.users.get(block, 0) + 1
            plain.shared = hits
            plain.computed = len(hits) * BLOCK
            if plain.cached < 0:
                plain.cached = plain.computed
            self.running.append(plain)
            self.take(plain, need)
            self.plan.append((plain, size))
            budget -= size
        decodes = [plain for plain in self.running if not plain.is_prefilling]
        seconds = self.profile.step_s(
            len(decodes),
            sum(plain.context for plain in decodes),
            sum(size for _, size in self.plan),
            sum(size * (plain.computed + size / 2) for plain, size in self.plan),
        )
        self.plan += [(plain, 1) for plain in decodes]
        self.ends_at = now + seconds
        return self.ends_at

    def finish(self) -> list[Event]:
        self.ends_at = None
        events, self.events = self.events, []
        chunks = [pair for pair in self.plan if pair[0].is_prefilling]
        for plain, _ in [pair for pair in self.plan if not pair[0].is_prefilling]:
            plain.computed = plain.context
            plain.made += 1
            self.end(plain, events)
        for plain, size in chunks:
            plain.computed += size
            self.share(plain)
            if plain.computed == plain.target:
                plain.is_prefilling = False
                if not plain.made and plain.generation.output_tokens:
                    events.append(Event(What.FIRST_TOKEN, plain.generation.id, plain.cached))
                plain.made += 1
                self.end(plain, events)
        self.plan = []
        return events

    def end(self, plain: Plain, events: list[Event]) -> None:
        if plain.made >= plain.generation.output_tokens:
            self.release(plain)
            self.running.remove(plain)
            events.append(Event(What.FINISHED, plain.generation.id, plain.cached))
