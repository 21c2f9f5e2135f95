"""EngineModel: a vLLM-like engine in virtual time. Pure: no I/O, no clock, no chance.

It imports nothing but its own parts (`kvcache`, `profiles`, `sequence`): a test double must not share the
code under test.

The clock is the iteration. `begin(now)` plans the next one and says when it ends, `finish()` makes it happen
and says what came of it; whoever drives the model (a heap of events, or a timer) calls them in turn. One
iteration computes one token for each decoding sequence, then chunks of the prefills under way, then chunks
of waiting sequences, first come first served, until the token budget or `max_num_seqs` is reached
(vllm/v1/core/sched/scheduler.py). A running sequence that finds no memory takes it from the newest running
one, which starts again at the head of the queue (preemption by recompute); a waiting one waits. Whatever a
sequence has computed stays in the cache when it leaves, its output too.

Nothing costs work per token: contexts are kept as a sum, block growth as counts by phase (a sequence needs a
block every 16th step), ends by the step at which they fall due. Where only decodes run, `begin` leaps over
all iterations up to the next end; `submit` and `abort` cut a leap short at the boundary where the engine
would have noticed them, so read `ends_at` again after either.
"""

from collections import deque
from heapq import heappop, heappush
from math import sqrt

from loadtests.kvcache import BLOCK_TOKENS, BlockTree
from loadtests.profiles import PROFILES, Profile
from loadtests.sequence import Event, Generation, Id, Refusal, Sequence, What


class EngineModel:
    """One engine. Times are seconds of virtual time, as given to the methods; they must not go back.

    Args:
        profile: The GPU and model; gives memory and token budget unless they are named.
        max_queued: Waiting generations beyond which new ones are refused; None takes all, as vLLM does by
            default.
        ready_at: Nothing starts before.
        cold_requests: Until so many prompts are done, steps take `cold_factor` times as long.
    """

    def __init__(
        self,
        profile: Profile = PROFILES["bench-8b"],
        *,
        max_context_tokens: int = 131_072,
        max_num_seqs: int = 256,
        max_num_batched_tokens: int | None = None,
        kv_tokens: int | None = None,
        max_queued: int | None = None,
        ready_at: float = 0.0,
        cold_requests: int = 0,
        cold_factor: float = 1.0,
    ) -> None:
        self.profile = profile
        self.kv = BlockTree((kv_tokens or profile.kv_tokens) // BLOCK_TOKENS)
        self.max_context_tokens = min(max_context_tokens, self.kv.capacity * BLOCK_TOKENS)  # one alone must fit
        self.max_num_seqs = max_num_seqs
        self.budget_tokens = max_num_batched_tokens or profile.batch_tokens
        self.max_queued = max_queued
        self.ready_at = ready_at
        self.slowdown = 1.0
        """Factor on every step begun from now on."""
        self.prefix_query_tokens = self.prefix_hit_tokens = self.prompt_tokens = self.generation_tokens = 0
        self.preemptions = self.iterations = 0
        self._cold_left, self._cold_factor = cold_requests, cold_factor
        self._sequences: dict[Id, Sequence] = {}
        self._running: dict[Id, Sequence] = {}  # oldest first
        self._prefilling: dict[Id, Sequence] = {}
        self._waiting: deque[Sequence] = deque()
        self._decodes = 0
        self._context = 0  # sum over decoding sequences of prompt + generated tokens
        self._step = 0
        self._phases = [0] * BLOCK_TOKENS  # decoding sequences by shift % 16
        self._ends: dict[int, dict[Id, Sequence]] = {}  # by the step of the last token
        self._end_steps: list[int] = []  # heap of the keys of _ends, some stale
        # The plan: `_leap` iterations from `_start` on, the first of `_first_s` seconds, each longer by
        # `_longer_s`.
        self._leap = 0
        self._start = self._first_s = self._longer_s = 0.0
        self._chunks: list[tuple[Sequence, int]] = []
        self._events: list[Event] = []

    def __repr__(self) -> str:
        used = self.kv.private + self.kv.held
        return f"<EngineModel {self.running} running, {self.waiting} waiting, kv {used}/{self.kv.capacity}>"

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def decoding(self) -> int:
        return self._decodes

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def context_tokens(self) -> int:
        """Sum of the context of all that decode."""
        return self._context

    def backlog(self) -> list[tuple[int, int, int]]:
        """List what is to prefill, in turn: tokens left, tokens done (or cached, if it waits), output to come."""
        queue = (*self._prefilling.values(), *self._waiting)
        done = [(each, each.computed or self.cached_tokens(each.generation)) for each in queue]
        return [(each.target - tokens, tokens, each.generation.output_tokens) for each, tokens in done]

    @property
    def kv_usage(self) -> float:
        """Share of the memory that running sequences hold, 0 to 1; cached blocks nobody uses count as
        free."""
        return (self.kv.private + self.kv.held) / self.kv.capacity

    @property
    def ends_at(self) -> float | None:
        """End of what `begin` planned; None between iterations."""
        return self._end_of(self._leap) if self._leap else None

    def cached_tokens(self, generation: Generation) -> int:
        """Say how many prompt tokens it would find in the cache now; at least one is always computed anew."""
        limit = min((generation.prompt_tokens - 1) // BLOCK_TOKENS, len(generation.blocks))
        return self.kv.match(generation.blocks, limit)[0] * BLOCK_TOKENS

    def generated(self, id: Id) -> int:
        """Say how many output tokens a live generation has."""
        sequence = self._sequences[id]
        if sequence.is_decoding:
            return sequence.shift + self._step - sequence.generation.prompt_tokens
        return sequence.made

    def submit(self, generation: Generation, now: float) -> Refusal | None:
        """Put a generation into the queue, or say why not."""
        assert generation.prompt_tokens > 0
        assert generation.output_tokens <= generation.max_tokens
        if generation.prompt_tokens + generation.max_tokens > self.max_context_tokens:
            return Refusal.CONTEXT
        if self.max_queued is not None and len(self._waiting) >= self.max_queued:
            return Refusal.QUEUE
        assert generation.id not in self._sequences
        sequence = self._sequences[generation.id] = Sequence(generation, self.kv.root)
        self._waiting.append(sequence)
        self._cut(now)
        return None

    def abort(self, id: Id, now: float) -> bool:
        """Drop a generation and free its memory at once; False if it is not (or no longer) here."""
        sequence = self._sequences.pop(id, None)
        if sequence is None:
            return False
        self._cut(now)
        sequence.is_gone = True
        if id in self._running:
            del self._running[id]
            self._release(sequence, is_stepping=self._leap > 0)
        else:
            self._waiting.remove(sequence)
        return True

    def forget(self) -> None:
        """Empty the prefix cache."""
        self.kv.forget()

    def begin(self, now: float, leap: bool = True) -> float | None:
        """Plan the next iteration, or several decode-only ones at once, and say when that ends; None when
        idle.

        Args:
            leap: False plans one iteration only, for a driver that wants to see each token.
        """
        assert not self._leap, "finish first"
        if not self._running and not self._waiting:
            return None
        is_preempted = self._grow_decodes()
        budget = self.budget_tokens - self._decodes
        for sequence in list(self._prefilling.values()):
            if budget <= 0 or sequence.generation.id not in self._running:
                break  # out of tokens, or preempted in favour of an older one
            size = min(sequence.target - sequence.computed, budget)
            need = _blocks(sequence.computed + size) - sequence.allocated
            decodes = self._decodes
            while need > self.kv.free and sequence.generation.id in self._running:
                self._preempt_newest(True)
                is_preempted = True
            budget += decodes - self._decodes
            if sequence.generation.id in self._running:
                self._chunk(sequence, size, need)
                budget -= size
        if not is_preempted:
            self._admit(budget)
        self._plan(max(now, self.ready_at), leap)
        return self.ends_at

    def _grow_decodes(self) -> bool:
        """Give each decoding sequence room for its next token; say whether that took preempting others."""
        is_preempted = False
        phase = (1 - self._step) % BLOCK_TOKENS  # context % 16 == 1: the first token of a block
        while self._phases[phase] > self.kv.free:
            self._preempt_newest(False)
            is_preempted = True
        self.kv.take(self._phases[phase])
        return is_preempted

    def _admit(self, budget: int) -> None:
        """Let waiting sequences in, first come first served, while tokens, places and memory last."""
        while self._waiting and budget > 0 and len(self._running) < self.max_num_seqs:
            sequence = self._waiting[0]
            limit = min((sequence.target - 1) // BLOCK_TOKENS, len(sequence.blocks))
            hits, idle = self.kv.match(sequence.blocks, limit)
            size = min(sequence.target - hits * BLOCK_TOKENS, budget)
            need = _blocks(hits * BLOCK_TOKENS + size) - hits
            if need + idle > self.kv.free:
                return
            self._waiting.popleft()
            sequence.run, _ = self.kv.use(self.kv.root, sequence.blocks, 0, hits, mine=False)
            sequence.shared = sequence.allocated = hits
            sequence.computed = hits * BLOCK_TOKENS
            if sequence.cached < 0:
                sequence.cached = sequence.computed
                self.prefix_query_tokens += sequence.target
                self.prefix_hit_tokens += sequence.cached
            self._running[sequence.generation.id] = self._prefilling[sequence.generation.id] = sequence
            self._chunk(sequence, size, need)
            budget -= size

    def _chunk(self, sequence: Sequence, size: int, need: int) -> None:
        """Put a chunk of prefill into the plan."""
        self.kv.take(need)
        sequence.allocated += need
        self._chunks.append((sequence, size))

    def _preempt_newest(self, is_stepping: bool) -> None:
        id, sequence = self._running.popitem()
        self._release(sequence, is_stepping)
        sequence.reset(self.kv.root)
        self._waiting.appendleft(sequence)
        self.preemptions += 1
        self._events.append(Event(What.PREEMPTED, id, sequence.cached))

    def _plan(self, start: float, leap: bool) -> None:
        prefill = 0
        attended = 0.0
        for sequence, size in self._chunks:
            prefill += size
            attended += size * (sequence.computed + size / 2)
        factor = self.slowdown * (self._cold_factor if self._cold_left > 0 else 1.0)
        self._start = start
        self._first_s = factor * self.profile.step_s(self._decodes, self._context, prefill, attended)
        self._longer_s = factor * self.profile.d2 * self._decodes / 1e3
        self._leap = 1
        if leap and self._decodes and not self._chunks and not self._events:
            while self._end_steps[0] not in self._ends:
                heappop(self._end_steps)
            # Any 16 steps in a row take one block for each sequence.
            safe = BLOCK_TOKENS * (self.kv.free // self._decodes)
            self._leap = max(1, min(self._end_steps[0] - self._step, safe))

    def _end_of(self, count: int) -> float:
        """Say when the first `count` iterations of the plan are over."""
        return self._start + count * self._first_s + self._longer_s * (count * (count - 1) / 2)

    def _cut(self, now: float) -> None:
        """Let the plan end with the iteration under way at `now`."""
        if self._leap > 1:
            self.catch_up(now)
            self._leap = 1

    def catch_up(self, now: float) -> None:
        """Bring the counters up to `now` within a leap; never needed for what `begin` and `finish` do."""
        if self._leap < 2:
            return
        late = now - self._start
        half = self._longer_s / 2
        linear = self._first_s - half
        done = int(2 * late / (linear + sqrt(linear * linear + 4 * half * late))) if late > 0 else 0
        done = min(done, self._leap - 1)
        while done and self._end_of(done) > now:
            done -= 1
        while done < self._leap - 1 and self._end_of(done + 1) <= now:
            done += 1
        self._skip(done)

    def _skip(self, count: int) -> None:
        """Make the first `count` iterations of a leap happen, at whose ends nothing falls due."""
        if not count:
            return
        cycles, rest = divmod(count, BLOCK_TOKENS)
        growth = cycles * self._decodes
        for step in range(self._step + 1, self._step + 1 + rest):
            growth += self._phases[(1 - step) % BLOCK_TOKENS]
        self.kv.take(growth)
        self._start = self._end_of(count)
        self._first_s += count * self._longer_s
        self._leap -= count
        self._decoded(count)

    def _decoded(self, count: int) -> None:
        self._step += count
        self._context += count * self._decodes
        self.generation_tokens += count * self._decodes
        self.iterations += count

    def finish(self) -> list[Event]:
        """Make what was planned happen; say what came of it, in the order of the batch."""
        assert self._leap, "begin first"
        self._skip(self._leap - 1)
        self._leap = 0
        self._decoded(1)
        events, self._events = self._events, []
        for id, sequence in self._ends.pop(self._step, {}).items():
            self._leave(id, sequence, events)
        chunks, self._chunks = self._chunks, []
        for sequence, size in chunks:
            if sequence.is_gone:
                continue
            sequence.computed += size
            self._share(sequence, sequence.computed)
            if sequence.computed == sequence.target:
                self._prefilled(sequence, events)
        return events

    def _prefilled(self, sequence: Sequence, events: list[Event]) -> None:
        """Take a sequence whose prompt is computed to its next token, and on to decoding."""
        generation = sequence.generation
        if not sequence.made:
            self.prompt_tokens += generation.prompt_tokens
            self._cold_left -= 1
            if generation.output_tokens:
                events.append(Event(What.FIRST_TOKEN, generation.id, sequence.cached))
        if sequence.made < generation.output_tokens:
            sequence.made += 1
            self.generation_tokens += 1
        if sequence.made >= generation.output_tokens:
            self._leave(generation.id, sequence, events)
            return
        del self._prefilling[generation.id]
        sequence.is_decoding = True
        context = generation.prompt_tokens + sequence.made
        sequence.shift = context - self._step
        sequence.ends = self._step + generation.output_tokens - sequence.made
        if sequence.ends not in self._ends:
            self._ends[sequence.ends] = {}
            heappush(self._end_steps, sequence.ends)
        self._ends[sequence.ends][generation.id] = sequence
        self._phases[sequence.shift % BLOCK_TOKENS] += 1
        self._decodes += 1
        self._context += context

    def _leave(self, id: Id, sequence: Sequence, events: list[Event]) -> None:
        del self._running[id], self._sequences[id]
        self._release(sequence, False)
        events.append(Event(What.FINISHED, id, sequence.cached))

    def _release(self, sequence: Sequence, is_stepping: bool) -> None:
        """Take a sequence out of the batch and give its memory back, what it has computed into the cache.

        Args:
            is_stepping: Room for the next token has been given already.
        """
        if sequence.is_decoding:
            self._stop_decoding(sequence, is_stepping)
        else:
            del self._prefilling[sequence.generation.id]
        self._share(sequence, sequence.computed)
        self.kv.private -= sequence.allocated - sequence.shared + sequence.doubles
        self.kv.leave(sequence.run)

    def _stop_decoding(self, sequence: Sequence, is_stepping: bool) -> None:
        context = sequence.shift + self._step
        sequence.made = context - sequence.generation.prompt_tokens
        sequence.computed = context - 1  # the newest token is known, its KV is not
        sequence.allocated = _blocks(context if is_stepping else context - 1)
        sequence.is_decoding = False
        self._phases[sequence.shift % BLOCK_TOKENS] -= 1
        self._decodes -= 1
        self._context -= context
        due = self._ends.get(sequence.ends)
        if due is not None:
            due.pop(sequence.generation.id, None)
            if not due:
                del self._ends[sequence.ends]

    def _share(self, sequence: Sequence, computed: int) -> None:
        """Put the full blocks of the first `computed` tokens into the tree."""
        full = min(computed // BLOCK_TOKENS, len(sequence.blocks))
        if full > sequence.shared:
            sequence.run, doubles = self.kv.use(sequence.run, sequence.blocks, sequence.shared, full, mine=True)
            sequence.doubles += doubles
            sequence.shared = full


def _blocks(tokens: int) -> int:
    return -(-tokens // BLOCK_TOKENS)
