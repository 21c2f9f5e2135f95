"""How many tokens a prompt has: an estimate from its bytes, until a model's own tokenizer is asked.

Text has 4.1 to 4.7 UTF-8 bytes a token in the median message, so four is a little on the safe side. Prompts of token
ids are exact. Images, audio and other base64 never count: a picture of 2 MB is not half a million tokens.
"""

from typing import Any

BYTES_PER_TOKEN = 4
_TEXT_FIELDS = frozenset(
    ("messages", "prompt", "input", "system", "instructions", "tools", "query", "documents", "text_1", "text_2")
)
_BINARY_PARTS = frozenset(("image_url", "input_image", "image", "input_audio", "audio", "video", "video_url", "file"))
MAX_DEPTH = 32  # deeper structures are nobody's prompt


def estimate_prompt_tokens(document: dict[str, Any]) -> int:
    """Estimate the prompt tokens of a parsed body, by what engines would put into the prompt."""
    text_bytes = ids = 0
    for name in document.keys() & _TEXT_FIELDS:
        value = document[name]
        if value:
            more_bytes, more_ids = _measure(value, 0)
            text_bytes += more_bytes
            ids += more_ids
    return ids + -(-text_bytes // BYTES_PER_TOKEN)


def _measure(value: Any, depth: int) -> tuple[int, int]:
    """Give the bytes of text and the number of token ids within a value."""
    if isinstance(value, str):
        return _bytes_of(value), 0
    if isinstance(value, list):
        if type(value[0]) is int:
            return 0, len(value)
        parts = value
    elif isinstance(value, dict):
        if value.get("type") in _BINARY_PARTS:
            return 0, 0
        parts = list(value.values())
    else:
        return 0, 0
    text_bytes = ids = 0
    if depth < MAX_DEPTH:
        for part in parts:
            if type(part) is str:
                text_bytes += len(part) if part.isascii() else _bytes_of(part)
            elif part:
                more_bytes, more_ids = _measure(part, depth + 1)
                text_bytes += more_bytes
                ids += more_ids
    return text_bytes, ids


def _bytes_of(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
