"""Train the small tokenizer of the demo and the tests: `train.py TEXT...` writes tokenizer.json beside this file.

Byte-level BPE as Qwen's models have it: the same pattern that cuts text into words, NFC, single digits, ChatML's
special tokens. The texts are named on the command line; README.md says which they were.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = Path(__file__).parent
VOCABULARY = 4096
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
PLAIN = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
OWN_LINES = (
    '{"type": "function", "function": {"name": "get_weather", "description": "Get the weather of a city", '
    '"parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}\n',
    "You are a helpful assistant. Answer the question as well as you can.\n",
    "def route(request, endpoints):\n    for endpoint in endpoints:\n        if endpoint.is_ready:\n"
    "            return 0\n",
    "A gateway routes each request to the endpoint that holds the longest cached prefix of its prompt.\n",
)


def texts(paths: list[Path]) -> Iterator[str]:
    """Give the texts line by line, and the few lines that old books lack."""
    for path in paths:
        yield from path.read_text(encoding="utf-8").splitlines(keepends=True)
    for line in OWN_LINES:
        yield from [line] * 50


def main(paths: list[Path]) -> None:
    """Train on texts and write tokenizer.json beside this file."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL) - len(PLAIN),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(paths), trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in PLAIN])
    document = json.loads(tokenizer.to_str())
    (HERE / "tokenizer.json").write_text(
        json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
