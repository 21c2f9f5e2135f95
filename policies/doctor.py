"""Doctor: finds, in the shapes of prompts, what keeps them from sharing a cached prefix.

The prompts of a tenant and model are walked through a tree whose edges are *frames*: segments with what varies masked.
So prompts that differ by a date alone share all nodes, and a node knows which exact texts it was seen with. Beside it
a set of exact chains says what an endless cache would hold. Of each prompt:

    break       its first segment whose exact chain is new: from there on an engine has to compute
    aligned     where its frame is known there, what differs are marks of that frame (a date, a name, an order) or white
                space; segments behind it that are known by their exact text are wasted on it, up to the next that
                varies, which is blamed for what comes behind that
    lost        where its frame is new, too, other text stands there; it is compared with a recent prompt that came as
                far: the same lines in another order, something put in before, or just other text. Wasted on it is how
                its part ends, and the parts behind, as far as at least MIN_PRESENCE of prompts agree in it

Not wasted is what is not constant: a user's question differs and nothing constant follows; the next turn of a
conversation goes on where the last one ended; another application's prompt is new once. Two variants of a prompt are
two chains, each new once. What is forgotten makes breaks that are none: a segment counts as one only if its text was
not seen at its node before.

A finding is told only if it is sure: see `Group`. False alarms are worse than misses: whoever got one does not look
again. All memory is bounded, and what is forgotten makes the doctor say less, never more.
"""

from collections import Counter
from collections.abc import Sequence

from xxhash import xxh3_64_intdigest

from policies.findings import SAME_CONTENT, Fault, Finding
from policies.generations import Generations
from policies.shape import shape_of
from policies.spots import MIN_REQUESTS, Group, Node, Spot, Waste
from policies.walk import Walk

MEMORY = 1 << 15  # chains of a generation, and a quarter of that of nodes
MAX_GROUPS = 256
TOOLS = "t"  # one segment of all, so that most of it is constant whatever varies in it
REORDERED = (Fault.BLOCK_ORDER, Fault.KEY_ORDER)

MIN_PRESENCE = 0.5  # of prompts that end alike to call it constant: the document that is retrieved most is in fewer
MIN_SEEN = 3  # requests, before a text is called constant


class Doctor:
    """Looks at requests, in the order in which they came.

    Args:
        memory: Exact chains of a generation.
    """

    def __init__(self, memory: int = MEMORY) -> None:
        self._chains: Generations[bool] = Generations(memory)
        self._alike: Generations[list[int]] = Generations(memory)
        """Requests by how their parts begin and end, as far as each segment."""
        self._nodes: Generations[Node] = Generations(memory // 4)
        self._below: Generations[tuple[str, ...]] = Generations(memory // 32)
        """By node: the frames behind it in its part, of the last prompt that brought new ones there."""
        self._groups: dict[tuple[str, str, str], Group] = {}
        self._skipped: Counter[tuple[str, str]] = Counter()
        self.requests = 0
        self.looked_at = 0
        """Requests that had a shape."""

    def note(self, tenant: str, model: str, at: float, shape: str | None) -> Sequence[Waste]:
        """Take in one request.

        Args:
            tenant: Whose it is.
            model: By its own name.
            at: Unix seconds of its arrival.
            shape: As the log has it; None: it was not looked at, and the next of its like stands for it as well.
        Returns:
            What sure faults have cost, that was not returned before.
        """
        self.requests += 1
        whose = (tenant, model)
        read = shape_of(shape) if shape is not None else None
        if read is None or not read.segments:
            if whose in self._skipped or len(self._skipped) < MAX_GROUPS:
                self._skipped[whose] += 1
            return ()
        self.looked_at += 1
        weight = 1 + self._skipped.pop(whose, 0)
        key = (tenant, model, read.salt)
        group = self._groups.get(key)
        if group is None:
            if len(self._groups) >= MAX_GROUPS:
                return ()
            group = self._groups[key] = Group(xxh3_64_intdigest("\0".join(key).encode("utf-8", "surrogatepass")), at)
        group.last_at = max(group.last_at, at)
        walk = Walk(group.root, read.segments)
        self._find(group, walk, weight)
        self._remember(group, walk)
        return group.due(self._nodes)

    def findings(self, tenant: str | None = None) -> list[Finding]:
        """Give what is sure, the dearest first."""
        found = [
            finding
            for (name, model, _), group in self._groups.items()
            if tenant is None or name == tenant
            for finding in group.findings(name, model, self._nodes)
        ]
        return sorted(found, key=lambda finding: -finding.wasted_tokens)

    # One prompt.

    def _find(self, group: Group, walk: Walk, weight: int) -> None:
        """Find where a prompt parts from those before it, and what that wastes."""
        spot: Spot | None = None
        blamed: Fault | None = None
        for at, segment in enumerate(walk.segments):
            if spot is None and self._chains.get(walk.chains[at]):
                continue
            node = self._nodes.get(walk.frames[at])
            if node is None:
                self._lose(group, walk, at, weight)
                return
            if segment.exact in node.values:
                if spot is not None and (node.count >= MIN_SEEN or blamed in SAME_CONTENT):
                    spot.waste(segment.size, weight)
                continue
            fault = node.fault_of(segment)
            if spot is None or fault is not Fault.WHITE_SPACE or blamed is not fault:
                spot = group.spot(fault, segment, walk.positions[at], walk.frames[at], walk.above(at))
                if spot is None:
                    return
                spot.breaks += 1
                blamed = fault
            if fault in SAME_CONTENT or segment.place == TOOLS:
                spot.waste(segment.size, weight)

    def _lose(self, group: Group, walk: Walk, at: int, weight: int) -> None:
        """Judge a prompt that goes on from `at` as none before it."""
        came_to = at
        above = self._nodes.get(walk.above(at))
        while came_to and above is not None and above.count < MIN_REQUESTS:
            came_to -= 1
            above = self._nodes.get(walk.above(came_to))
        if above is None or (at and not came_to):  # its kind is too rare so far to be told from all others
            return
        fault = self._compare(walk, at)
        segment = walk.segments[at]
        enough = max(MIN_SEEN, MIN_PRESENCE * above.count)
        is_ending_alike = above.tails.get(walk.tails[at], 0) >= enough
        wasted = 0
        for n, each in enumerate(walk.segments[at:], at):
            is_own = each.place == segment.place
            count = self._alike.get(walk.endings[n] if is_own else walk.beginnings[n])
            is_alike = count is not None and count[0] >= enough and (is_ending_alike or not is_own)
            if is_alike or (is_own and fault in REORDERED):
                wasted += each.size
        spot = group.spot(fault, segment, walk.positions[at], None, walk.above(came_to)) if wasted else None
        if spot is not None:
            spot.breaks += 1
            spot.waste(wasted, weight)

    def _compare(self, walk: Walk, at: int) -> Fault:
        """Say how a prompt differs, from `at` to the end of its part, from the last that came as far."""
        theirs = self._below.get(walk.above(at))
        if theirs is None:
            return Fault.VARYING
        mine = walk.rest_of_part(at)
        if len(mine) == len(theirs) and Counter(mine) == Counter(theirs):
            moved = [walk.segments[at + n] for n, frame in enumerate(mine) if frame != theirs[n]]
            members = sum(any(mark.kind == "k" for mark in segment.marks) for segment in moved)
            return Fault.KEY_ORDER if 2 * members > len(moved) else Fault.BLOCK_ORDER
        is_longer = mine[-len(theirs) :] == theirs or theirs[-len(mine) :] == mine
        return Fault.INSERTED if is_longer else Fault.VARYING

    def _remember(self, group: Group, walk: Walk) -> None:
        size = sum(segment.size for segment in walk.segments)
        group.requests += 1
        root = self._nodes.get(group.root)
        if root is None:
            root = Node()
            self._nodes.put(group.root, root)
        root.count += 1
        root.size += size
        root.end(walk.tails[0])
        is_kept = True
        for at, segment in enumerate(walk.segments):
            node = self._nodes.get(walk.frames[at])
            if node is None:
                node = Node()
                self._nodes.put(walk.frames[at], node)
                self._below.put(walk.above(at), walk.rest_of_part(at))
            node.note(segment, size)
            node.end(walk.tails[at + 1])
            is_kept = is_kept and not node.never_repeats
            if is_kept:
                self._chains.put(walk.chains[at], True)
            for key in (walk.endings[at], walk.beginnings[at]):
                count = self._alike.get(key)
                if count is None:
                    self._alike.put(key, [1])
                else:
                    count[0] += 1
