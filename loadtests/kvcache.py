"""BlockTree: the KV memory of the simulated engine, and the prefix cache that lives in it. Pure.

Memory is blocks of 16 tokens. A full block whose tokens are computed goes into a tree of runs, where others
with the same prefix share it by count; blocks that are partial, not yet computed, or double one in the tree
are private to their sequence. Blocks of the tree that nobody uses are both free memory and the prefix cache:
the oldest go first, and of one sequence the tail before the head, so that heads survive
(vllm/v1/core/block_pool.py: the free queue).

Block ids are chained: equal ids mean equal prefixes. So one comparison tells a whole run, and the work of
every method is by runs, not by blocks: a prompt of a system prompt and a turn is two runs, whatever its
length.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence

BLOCK_TOKENS = 16  # vLLM's default on GPUs


class Run:
    """Consecutive blocks with the same users: a node of the tree."""

    __slots__ = ("blocks", "children", "parent", "users")

    def __init__(self, blocks: Sequence[int], parent: "Run | None", users: int) -> None:
        self.blocks = blocks
        self.parent = parent
        self.users = users
        self.children: dict[int, Run] = {}


class BlockTree:
    """KV memory: a tree of shared runs, and a count of private blocks.

    Invariants: private + held + idle <= capacity; a run has at least the users of each run below it, so an
        idle run has
    only idle ones below, all of which became idle before it: evicting the oldest never cuts a chain in the
    middle.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.private = 0
        self.held = 0
        self.idle = 0
        self.root = Run((), None, 1)
        self._oldest: OrderedDict[Run, None] = OrderedDict()

    @property
    def free(self) -> int:
        """Blocks to be had, counting cached ones that nobody uses."""
        return self.capacity - self.private - self.held

    def match(self, blocks: Sequence[int], limit: int) -> tuple[int, int]:
        """Count the leading blocks that are here, at most `limit`, and how many of them are idle."""
        node, hits, idle = self.root, 0, 0
        while hits < limit:
            child = node.children.get(blocks[hits])
            if child is None:
                break
            size = _common(child.blocks, blocks, hits, limit)
            idle += 0 if child.users else size
            hits += size
            if size < len(child.blocks):
                break
            node = child
        return hits, idle

    def use(self, node: Run, blocks: Sequence[int], start: int, end: int, mine: bool) -> tuple[Run, int]:
        """Use blocks[start:end] below `node`, and count those of them that others use too.

        Args:
            mine: The caller holds private copies. What the tree lacks is put there, what lies there idle is
                replaced.
        Returns:
            The deepest run, and the blocks of which there now are two copies.
        """
        doubles = 0
        while start < end:
            child = node.children.get(blocks[start])
            if child is None:
                assert mine, "only blocks that were matched can be used without a copy"
                child = Run(blocks[start:end], node, 1)
                node.children[blocks[start]] = child
                self.held += end - start
                self.private -= end - start
                return child, doubles
            size = _common(child.blocks, blocks, start, end)
            if size < len(child.blocks):
                child = self._split(child, size)
            if child.users:
                doubles += size
            else:
                self._oldest.pop(child, None)  # the upper part of a run just split is not there
                self.idle -= size
                self.held += size
                self.private -= size if mine else 0
            child.users += 1
            start += size
            node = child
        return node, doubles

    def _split(self, run: Run, size: int) -> Run:
        """Put the first `size` blocks into a run of their own; sequences and age stay with the rest."""
        assert run.parent is not None
        upper = Run(run.blocks[:size], run.parent, run.users)
        run.parent.children[upper.blocks[0]] = upper
        run.blocks = run.blocks[size:]
        run.parent = upper
        upper.children[run.blocks[0]] = run
        return upper

    def leave(self, node: Run) -> None:
        """Stop using a run and all above it; the tail becomes idle before the head."""
        while node.parent is not None:
            node.users -= 1
            if not node.users:
                self._oldest[node] = None
                self.idle += len(node.blocks)
                self.held -= len(node.blocks)
            node = node.parent

    def take(self, count: int) -> None:
        """Make `count` blocks private, evicting the oldest idle ones where no empty ones are left."""
        self.private += count
        self._evict(self.private + self.held + self.idle - self.capacity)

    def forget(self) -> None:
        """Evict every idle block."""
        self._evict(self.idle)

    def _evict(self, count: int) -> None:
        while count > 0:
            run = next(iter(self._oldest))
            size = len(run.blocks)
            gone = min(size, count)
            if gone == size:
                assert run.parent is not None
                del self._oldest[run], run.parent.children[run.blocks[0]]
            else:
                run.blocks = run.blocks[: size - gone]
            self.idle -= gone
            count -= gone


def _common(run: Sequence[int], blocks: Sequence[int], start: int, end: int) -> int:
    """Count the leading blocks of `run` that blocks[start:end] begins with; ids are chained, so one tells
    all before."""
    size = min(len(run), end - start)
    if run[size - 1] == blocks[start + size - 1]:
        return size
    return bisect_left(range(size), True, key=lambda at: run[at] != blocks[start + at])
