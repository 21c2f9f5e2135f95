"""What a tokenizer is tried on before it is believed: that a faster one agrees with it, and that texts may be cut.

Both are reasoned to be exact, and neither is taken on reason alone: the tokenizers of the world are odder than that.
"""

import json
import logging
from array import array
from collections.abc import Iterator, Sequence

from tokenizers import AddedToken, Tokenizer

from gateway.tokens.encoding import Encode
from gateway.tokens.segments import Cutter, cut_tokens

log = logging.getLogger(__name__)

TEXTS = (
    "The quick brown fox can't jump over 12,345 lazy dogs; it's 3.14159 o'clock. WHY?! We'LL see.",
    "从前有座山，山里有座庙，庙里有个老和尚。日本語のテキスト、한국어 텍스트, עברית, العربية, हिन्दी, ไทย",
    "def f(x: int) -> str:\n\treturn f'{x!r}'  # noqa\n\n\nclass A:\n    pass\n\r\n#include <stdio.h>\nfor(;;){}",
    "emoji 🙂🙃👩‍👩‍👧‍👦🏳️‍🌈 e\u0301 é ﬁ ① ½ \u200b\u00a0\u3000 \ufeff zero",
    "   leading and trailing    \n\n \t  runs   of          blanks\n\n\n\n",
    '{"type": "function", "function": {"name": "f", "arguments": "{\\"a\\": [1, 2.5e-3, null]}"}}',
    "0 00 000 0000 1234567890 0x1f 1e10 -1 +2 3,000.00 ²³ ٣٤ Ⅷ",
    "deadbeefcafebabe" * 8 + "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo=",
    "<|not a token|> <|im_sta <s <<<>>> [INST ] <think",
    "a",
    " ",
    "\n",
    "",
)


def samples(tokens: Sequence[str]) -> Iterator[str]:
    """Give texts of many kinds, alone and with a model's own tokens in, between and around them."""
    yield from TEXTS
    for at, token in enumerate(tokens):
        text, other = TEXTS[at % len(TEXTS)], TEXTS[(at + 5) % len(TEXTS)]
        yield f"{token}{text}{token}\n{other}"
        yield f"{text} {token} {other}{token}{token}"
        yield f"{token[:-1]}{token}{token[1:]}"
    yield "".join(f"{token}user\n{text}" for token in tokens for text in TEXTS)


def tokens_as_they_stand(tokenizer: Tokenizer) -> list[AddedToken]:
    """Give the added tokens that are found in a text before it is normalised, or that nothing normalises."""
    normaliser = tokenizer.normalizer
    is_plain = normaliser is None or json.loads(normaliser.__getstate__()).get("normalizers") == []
    tokens = tokenizer.get_added_tokens_decoder().values()
    return [token for token in tokens if token.content and (is_plain or not token.normalized)]


def cutter_for(tokenizer: Tokenizer, encode: Encode, openers: Sequence[str], name: str) -> Cutter:
    """Give what cuts rendered texts before turns; it cuts nothing where that would change the ids."""
    added = tokens_as_they_stand(tokenizer)
    numbers = {text: tokenizer.token_to_id(text) for text in cut_tokens(added, openers)}
    cutter = Cutter({text: number for text, number in numbers.items() if number is not None})
    if not cutter.tokens:
        return cutter
    others = [token.content for token in added][:50]
    for text in samples([*cutter.tokens, *others]):
        pieces = [array("I", encode(piece)).tobytes() for piece in cutter.cut(text)]
        whole = array("I", encode(text)).tobytes()
        if b"".join(pieces) != whole or (whole and cutter.cut_ids(whole, len(pieces)) != pieces):
            log.warning("%s: its ids are not kept by segment: cutting at %s changes them", name, cutter.tokens)
            return Cutter({})
    return cutter


def encode_of(tokenizer: Tokenizer) -> Encode:
    """Give the tokenizer's call that lets go of the interpreter's lock."""

    def encode(text: str, /) -> Sequence[int]:
        ids: list[int] = tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    return encode


def fast_encode_of(tokenizer: Tokenizer, exact: Encode, name: str) -> Encode | None:
    """Give a faster tokenizer's call, where one is installed and finds the same ids."""
    try:
        from fastokens import Tokenizer as FastTokenizer
    except ImportError:
        return None
    try:
        fast = FastTokenizer.from_json_str(tokenizer.to_str())

        def encode(text: str, /) -> Sequence[int]:
            ids: list[int] = fast.encode(text, add_special_tokens=False).ids
            return ids

        tokens = [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.content]
        for text in samples(tokens[:50]):
            if list(encode(text)) != list(exact(text)):
                log.warning("%s: fastokens does not find its ids, and is not used", name)
                return None
    except Exception as error:  # a binary of others, tried on a tokenizer of others
        log.warning("%s: fastokens cannot take it, and is not used: %s", name, " ".join(str(error).split())[:200])
        return None
    return encode
