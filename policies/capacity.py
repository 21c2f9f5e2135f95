"""What fits into the memory of the GPUs that serve a model: weights, activations, overhead, and KV cache from the rest.

The arithmetic of one GPU, for the one of the pipeline that has least room; all are GiB unless a name says otherwise:

    usable       memory x utilization: what the engine may take; the rest stays free
    weights      the GPU's part of every tensor, in the type that it is kept in; what cannot be split is there whole
    activations  the most that is alive at once: one prefill chunk in the widest block, or the sampler's copies of the
                 logits, whichever is more (they never run together), with a margin
    overhead     CUDA context, CUDA graphs, and where there are several GPUs the buffers of NCCL
    room         what is left, for the KV cache

The cache is paged as vLLM pages it (v1/core/kv_cache_utils.py), where layers of several kinds share one pool. Layers of
one kind form groups of equal size, a block holds one page for each layer of a group, and all pages are equally large;
the last group of a kind may be padded. A sequence takes, in each group:

    full attention     a block for each `block` tokens
    sliding window     blocks for the window's tokens and one more, as the window's two ends lie within blocks
    recurrent state    two blocks: one that runs, one at the last point that the prefix cache can resume from

and a chunk that is being prefilled is held beside the windows, once, as all that run share its tokens. Where states are
larger than a page, pages grow to a state's size: then attention is paged in hundreds of tokens.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, floor

from policies.layers import MANY, Cache, Heads, Kind, Latent, Layer, Part, Shape, State

GIB = 1 << 30
MARGIN = 0.10  # of usable memory: less is eaten by an update of engine or driver, or the next adapter
ACTIVATION_BYTES = 2  # engines compute in 16 bits, whatever the weights are kept in
ACTIVATION_MARGIN = 1.1  # workspaces of kernels, and holes in PyTorch's caching allocator
RESIDUAL_WIDTH = 4  # of the model's: residual, normed input, output of the block, and its sum over the GPUs
SAMPLER_BYTES = 40  # a logit, with its sorted, summed and masked copies
# vLLM's log of Llama-3-8B with 256 sequences has 41; llm-d's planner for Llama and Qwen 39, if it was 1,024 sequences;
# samplers that need no sort (FlashInfer's) take less.
CONTEXT_GIB = 0.7  # CUDA context, kernels, cuBLAS workspaces: 0.5 to 1 on Hopper
GRAPHS_GIB = 0.6  # vLLM's own estimates are mostly 0.2 to 0.8 without speculation
NCCL_GIB = 1.25  # buffers and the custom all-reduce; vLLM's logs lie between 0.3 and 1.8
STATE_BLOCKS = 2  # see above
LARGE_GIB, MANY_SEQUENCES, FEW_SEQUENCES = 70, 1024, 256  # vLLM's --max-num-seqs by memory; an A100 has few too
POWERS = (2, 4, 8, 16)
FEW_TOKENS, HIGH = 2048, 0.95  # as far as a chunk is cut, and memory is used, without asking for trouble
LINEAR: frozenset[Kind] = frozenset({"attention", "feed", "experts"})  # what is quantized, if nothing else is said


@dataclass(frozen=True, slots=True)
class Precision:
    """How many bits a weight takes."""

    bits: float = 16.0
    """Of what is not quantized."""
    quantized_bits: float = 16.0
    """Scales and zero points included."""
    quantized: frozenset[Kind] = frozenset()

    def bytes_of(self, part: Part, tp: int) -> float:
        """Give what one of `tp` GPUs holds of a tensor."""
        bits = self.quantized_bits if part.kind in self.quantized else self.bits
        return part.values_per_gpu(tp) * bits / 8


@dataclass(frozen=True, slots=True)
class Plan:
    """How a model is to be served."""

    memory_gib: float
    """Of one GPU, as the driver shows it."""
    tp: int = 1
    pp: int = 1
    utilization: float = 0.9
    batched_tokens: int = 8192
    """Of a prefill chunk."""
    sequences: int = FEW_SEQUENCES
    """That run at once."""
    block: int = 16
    kv_bytes: float = 2.0
    """A value of the KV cache."""
    precision: Precision = field(default_factory=Precision)
    weight_bytes: float | None = None
    """Of all weights, where it is known better than by the shapes."""

    @property
    def gpus(self) -> int:
        return self.tp * self.pp


@dataclass(frozen=True, slots=True)
class Row:
    """What fits at one length of context."""

    context: int
    sequences: int
    """Of that length at once; 0: does not fit."""
    tokens: int
    """Of sequences of that length, as vLLM prints its cache's size."""
    gib_per_sequence: float
    """On one GPU."""
    margin: float
    """Of usable memory, left with one such sequence running; negative: missing."""

    @property
    def is_tight(self) -> bool:
        return self.margin < MARGIN


@dataclass(frozen=True, slots=True)
class Sheet:
    """The figures of one GPU, the one with least room."""

    usable_gib: float
    weights_gib: float
    activations_gib: float
    overhead_gib: float
    room_gib: float
    """For the KV cache; negative: missing."""
    page_tokens: int
    """Of full attention; a block is the least that a sequence can grow by. 0: nothing grows."""
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change that makes a context fit with margin."""

    change: str
    plan: Plan
    row: Row


class Pool:
    """The paged cache of one GPU."""

    def __init__(self, layers: Sequence[Layer], plan: Plan) -> None:
        """Page what these layers keep."""
        self._counts = Counter(layer.cache for layer in layers if layer.cache is not None)
        least, most = min(self._counts.values(), default=0), max(self._counts.values(), default=0)
        self._group = most if most < 1.5 * least else least  # near equals are padded to the larger, else waste is more
        self._plan = plan
        self._page_bytes = self._page()
        self.block_bytes = self._page_bytes * self._group

    def page_tokens(self, cache: Heads | Latent) -> int:
        """Give how many tokens a page holds."""
        return int(self._page_bytes // self._token_bytes(cache))

    @property
    def growing_page_tokens(self) -> int:
        """Tokens in a page of full attention; 0: nothing grows with the context."""
        full = [cache for cache in self._counts if not isinstance(cache, State) and cache.window is None]
        return min((self.page_tokens(cache) for cache in full), default=0)

    def blocks_of(self, context: int) -> int:
        """Count the blocks of a sequence that is as long as this."""
        return sum(self._groups(cache) * self._in_group(cache, context) for cache in self._counts)

    def blocks_of_chunk(self, context: int) -> int:
        """Count the blocks of a prefill chunk that lies beside the windows."""
        tokens = min(self._plan.batched_tokens, context)
        windows = [cache for cache in self._counts if not isinstance(cache, State) and cache.window is not None]
        return sum(
            self._groups(cache) * ceil(tokens / self.page_tokens(cache))
            for cache in windows
            if context > (cache.window or 0)
        )

    def _in_group(self, cache: Cache, context: int) -> int:
        if isinstance(cache, State):
            return STATE_BLOCKS
        if cache.window is None or context <= cache.window:
            return ceil(context / self.page_tokens(cache))
        return ceil(cache.window / self.page_tokens(cache)) + 1

    def _groups(self, cache: Cache) -> int:
        return ceil(self._counts[cache] / self._group)

    def _page(self) -> float:
        """Make a page as large as the largest needs it, in whole blocks of tokens."""
        blocks = [self._token_bytes(each) * self._plan.block for each in self._counts if not isinstance(each, State)]
        states = [each.bytes_per_sequence(self._plan.tp) for each in self._counts if isinstance(each, State)]
        state, block = max(states, default=0.0), max(blocks, default=0.0)
        return max(block, ceil(state / block) * block) if block else state

    def _token_bytes(self, cache: Heads | Latent) -> float:
        return cache.bytes_per_token(self._plan.kv_bytes, self._plan.tp)


def usual_sequences(memory_gib: float) -> int:
    """Give how many sequences vLLM lets run at once, where nothing else is said."""
    return MANY_SEQUENCES if memory_gib >= LARGE_GIB else FEW_SEQUENCES


def problem_of(shape: Shape, plan: Plan) -> str | None:
    """Say why a model cannot be split as planned; None: it can."""
    tp = plan.tp
    if shape.heads % tp:
        return f"{shape.heads} attention heads do not divide by --tp {tp}"
    for cache in {layer.cache for layer in shape.layers}:
        if isinstance(cache, Heads) and cache.kv_heads % tp and tp % cache.kv_heads:
            return f"{cache.kv_heads} KV heads can neither be split over nor copied evenly to --tp {tp}"
    if plan.pp > len(shape.layers):
        return f"--pp {plan.pp} is more than the {len(shape.layers)} layers"
    return None


def stages(count: int, pp: int) -> list[slice]:
    """Split layers over a pipeline as vLLM does: evenly, and one more for those before the last."""
    sizes = [count // pp] * pp
    for back in range(2, count % pp + 2):
        sizes[-back] += 1
    starts = [sum(sizes[:stage]) for stage in range(pp)]
    return [slice(start, start + size) for start, size in zip(starts, sizes, strict=True)]


def parts_of(shape: Shape, plan: Plan, stage: int) -> list[Part]:
    """Give the tensors of one stage of the pipeline."""
    layers = shape.layers[stages(len(shape.layers), plan.pp)[stage]]
    parts = [part for layer in layers for part in (*layer.mixer.parts, *layer.feed.parts)]
    if stage == 0:
        parts += shape.embeds
    if stage == plan.pp - 1:
        is_copy = shape.is_tied and stage == 0
        parts += [part for part in shape.ends if not (is_copy and part.kind == "embedding")]
    return parts


def activations_gib(shape: Shape, layers: Sequence[Layer], plan: Plan) -> float:
    """Estimate the most that is alive at once while a full chunk runs, or is sampled from."""
    blocks = [block for layer in layers for block in (layer.mixer, layer.feed)]
    widest = max(block.split_width / plan.tp + block.whole_width for block in blocks)
    chunk = plan.batched_tokens * (widest + RESIDUAL_WIDTH * shape.hidden) * ACTIVATION_BYTES
    sampled = min(plan.sequences, plan.batched_tokens) * shape.vocab * SAMPLER_BYTES
    return max(chunk, sampled) * ACTIVATION_MARGIN / GIB


def weights_gib(shape: Shape, plan: Plan, stage: int) -> float:
    """Give the weights of one GPU of a stage; its share of the true size, where that is known."""
    size = sum(plan.precision.bytes_of(part, plan.tp) for part in parts_of(shape, plan, stage))
    if plan.weight_bytes is not None:
        size *= plan.weight_bytes / sum(plan.precision.bytes_of(part, 1) for part in shape.parts())
    return size / GIB


def capacity(shape: Shape, plan: Plan, contexts: Sequence[int]) -> Sheet:
    """Compute what fits on the GPU that has least room.

    Args:
        shape: The model.
        plan: How it is served; must have no problem.
        contexts: Lengths of prompt and output together, in tokens.
    """
    found = [_sheet(shape, plan, stage, contexts) for stage in range(plan.pp)]
    least = min(found, key=lambda sheet: sheet.room_gib)
    rows = zip(*(sheet.rows for sheet in found), strict=True)
    return replace(least, rows=tuple(min(each, key=lambda row: (row.tokens, row.margin)) for each in rows))


def _sheet(shape: Shape, plan: Plan, stage: int, contexts: Sequence[int]) -> Sheet:
    layers = shape.layers[stages(len(shape.layers), plan.pp)[stage]]
    usable = plan.memory_gib * plan.utilization
    weights, activations = weights_gib(shape, plan, stage), activations_gib(shape, layers, plan)
    overhead = CONTEXT_GIB + GRAPHS_GIB + (NCCL_GIB if plan.gpus > 1 else 0.0)
    room = usable - weights - activations - overhead
    pool = Pool(layers, plan)
    rows = tuple(_row(pool, room, usable, context) for context in contexts)
    return Sheet(usable, weights, activations, overhead, room, pool.growing_page_tokens, rows)


def _row(pool: Pool, room_gib: float, usable_gib: float, context: int) -> Row:
    needed, chunk = pool.blocks_of(context), pool.blocks_of_chunk(context)
    if not pool.block_bytes:  # a stage whose layers keep nothing limits no cache
        fit = float(MANY) if room_gib >= 0 else 0.0
    else:
        fit = max(floor(max(room_gib, 0.0) * GIB / pool.block_bytes) - chunk, 0) / needed
    left_gib = room_gib - (needed + chunk) * pool.block_bytes / GIB
    return Row(context, floor(fit), floor(fit * context), needed * pool.block_bytes / GIB, left_gib / usable_gib)


def helped(shape: Shape, plan: Plan, contexts: Sequence[int]) -> tuple[int, list[Remedy]]:
    """Find the longest of some contexts that anything helps, and what helps it; the least where nothing helps any.

    Args:
        shape: The model.
        plan: What is tight.
        contexts: Those that are, at least one.
    """
    for context in sorted(contexts, reverse=True):
        if found := remedies(shape, plan, context):
            return context, found
    return min(contexts), []


def longest(shape: Shape, plan: Plan, context: int) -> int:
    """Give the longest context up to this one that fits with margin, in whole blocks; 0: none."""
    low, high = 0, context // plan.block
    while low < high:
        middle = (low + high + 1) // 2
        if capacity(shape, plan, [middle * plan.block]).rows[0].is_tight:
            high = middle - 1
        else:
            low = middle
    return low * plan.block


def remedies(shape: Shape, plan: Plan, context: int) -> list[Remedy]:
    """Find what would make one sequence of a length fit with margin: one change, or where none does, two."""
    ones = [((kind,), name, changed) for kind, name, changed in _changes(plan)]
    twos = [
        ((kind, other), f"{name} {another}", changed)
        for (kind,), name, one in ones
        for other, another, changed in _changes(one)
        if kind < other
    ]
    return _working(shape, context, ones) or _working(shape, context, twos)


def _working(shape: Shape, context: int, tries: Iterable[tuple[tuple[str, ...], str, Plan]]) -> list[Remedy]:
    """Keep what fits; of several that change the same, the first."""
    found: dict[tuple[str, ...], Remedy] = {}
    for kinds, name, plan in tries:
        if kinds not in found and problem_of(shape, plan) is None:
            row = capacity(shape, plan, [context]).rows[0]
            if not row.is_tight:
                found[kinds] = Remedy(name, plan, row)
    split = any("tp" in kinds for kinds in found)  # a pipeline is for where layers cannot be split further
    return [remedy for kinds, remedy in found.items() if not (split and "pp" in kinds)]


def _changes(plan: Plan) -> Iterator[tuple[str, str, Plan]]:
    """Give each single change that may help: of what, as an option of the command, and the plan with it."""
    if plan.kv_bytes > 1:
        yield "kv", "--kv-dtype fp8", replace(plan, kv_bytes=1.0)
    if not plan.precision.quantized:
        yield "dtype", "--dtype fp8", replace(plan, precision=Precision(16, 8, LINEAR), weight_bytes=None)
    if plan.batched_tokens > FEW_TOKENS:
        yield "chunk", f"--max-batched-tokens {FEW_TOKENS}", replace(plan, batched_tokens=FEW_TOKENS)
    if plan.sequences > FEW_SEQUENCES:
        yield "sequences", f"--max-sequences {FEW_SEQUENCES}", replace(plan, sequences=FEW_SEQUENCES)
    if plan.utilization < HIGH:
        yield "utilization", f"--utilization {HIGH}", replace(plan, utilization=HIGH)
    for power in POWERS:
        yield "tp", f"--tp {plan.tp * power}", replace(plan, tp=plan.tp * power)
    for power in POWERS:
        yield "pp", f"--pp {plan.pp * power}", replace(plan, pp=plan.pp * power)
