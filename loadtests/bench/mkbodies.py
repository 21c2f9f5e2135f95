"""Make the bench's request bodies: chat requests of 1, 8, 64 and 512 KB, as `mkbodies.py FOLDER`.

All of a size share their system prompt and their history and differ in the last message, where the load
client puts a counter in place of `UUUUUUUUUUUUUUUU`. `NAME_warm.json` has no counter: every request is the
same text, so that what is measured is the gateway and not a tokenizer. `NAME_sN.json` asks for a stream of N
chunks.
"""

import json
import random
import sys
from pathlib import Path

SEED = 7
COUNTER = "U" * 16
SIZES = {"1k": 1024, "8k": 8192, "64k": 65536, "512k": 524288}
TURNS = {8192: 2, 65536: 6, 524288: 24}  # earlier turns of the conversation
STREAMS = (16, 64, 1000)  # chunks
VOCABULARY = (
    "the of and to in a is that for it as was with be by on not he his but at are this have from or had an "
    "they which one you were all her she there would their we him been has when who will no more if out so "
    "up said what its about than into them can only other time new some could these two may first then do "
    "any like my now over such our man me even most made after also did many off before must well back "
    "through years where much your way down should because each people those mister how state good very "
    "make world still see own work long here get both between life being under day three never know same "
    "last another while us might great go come since against right came take used himself few house "
    "American use place during high without again home around small however found part school thought went "
    "say general once upon every left war number course small does got united eye head system set order "
    "point form model token cache engine batch kernel server request route latency queue prefix stream "
    "decode prefill memory weight layer attention"
)
WORDS = VOCABULARY.split()
ENDS = [".", ".", ".", ".", "?", ', and "quoted" text.', "\n\n- item:", " It's 42% of 3,141."]


def text(chance: random.Random, length: int) -> str:
    """Write `length` characters of sentences."""
    sentences: list[str] = []
    written = 0
    while written < length:
        words = [chance.choice(WORDS) for _ in range(chance.randint(8, 18))]
        sentences.append(" ".join(words).capitalize() + chance.choice(ENDS) + " ")
        written += len(sentences[-1])
    return "".join(sentences)[:length]


def body(size: int, *, chunks: int | None = None) -> str:
    """Write the JSON of one request of `size` bytes, for a stream of so many chunks if given."""
    chance = random.Random(SEED)
    system_length = int(size * 0.55) if size > 2000 else 350  # half of a real request is its system prompt
    messages = [{"role": "system", "content": text(chance, system_length)}]
    turns = TURNS.get(size, 0)
    roles = ("user", "assistant") * turns
    messages += [{"role": role, "content": text(chance, int(size * 0.1 / turns))} for role in roles]
    question = {"role": "user", "content": f"Request {COUNTER}: "}
    request: dict[str, object] = {
        "model": "Qwen/Qwen2.5-7B-Instruct",
        "messages": [*messages, question],
        "temperature": 0.7,
        "top_p": 0.95,
        "max_tokens": chunks or 64,
        "stream": chunks is not None,
    }
    if chunks is not None:
        request["stream_options"] = {"include_usage": True}
    question["content"] += text(chance, max(size - len(_compact(request).encode()), 60))
    return _compact(request)


def _compact(request: dict[str, object]) -> str:
    return json.dumps(request, separators=(",", ":"), ensure_ascii=False)


def main(folder: Path) -> None:
    """Write every body into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, size in SIZES.items():
        plain = {name: body(size), **{f"{name}_s{chunks}": body(size, chunks=chunks) for chunks in STREAMS}}
        for file, request in plain.items():
            (folder / f"{file}.json").write_text(request)
            (folder / f"{file}_warm.json").write_text(request.replace(COUNTER, "0" * 16))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
