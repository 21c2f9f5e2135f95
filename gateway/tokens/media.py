"""Images, audio, video and files within a prompt: never text, whatever their base64 looks like.

What a picture costs depends on the model and the picture: 576 tokens at LLaVA, 765 at a GPT-4o of 1024 x 1024, 1,369
at Qwen2.5-VL for the same. Nobody decodes it here; one count stands for all.
"""

from typing import Any

import orjson
from xxhash import xxh3_128_digest

IMAGE_TOKENS = 1024  # 1024 x 1024 pixels at Qwen3-VL, which makes one token of 32 x 32
MAX_MEDIA = 128  # of one prompt are told apart; ids stand for each of their tokens
PART_KEYS = (
    "image_url",
    "input_image",
    "image",
    "input_audio",
    "audio_url",
    "audio",
    "video_url",
    "video",
    "file",
    "image_embeds",
    "audio_embeds",
    "video_embeds",
    "prompt_embeds",
    "image_pil",
)
MEDIA_TYPES = frozenset((*PART_KEYS, "document", "input_file"))
_UNTYPED = frozenset(("image_url", "audio_url", "video_url", "input_audio", "image_embeds"))
"""Members that say what a part is where no `type` does; plain words like `file` may be anything's."""
_INNER_KEYS = ("url", "data", "file_data", "file_id", "file_url", "source")


def is_media(part: dict[str, Any]) -> bool:
    """Whether a content part is no text."""
    kind = part.get("type")
    if isinstance(kind, str):
        return kind in MEDIA_TYPES
    return kind is None and not _UNTYPED.isdisjoint(part)


def content_of(part: dict[str, Any]) -> bytes:
    """Give bytes that tell one picture from another: a digest of its address, or of its base64 as it came."""
    found: Any = part
    while isinstance(found, dict):
        inner = next((found[key] for key in (*PART_KEYS, *_INNER_KEYS) if found.get(key)), None)
        if inner is None:
            break
        found = inner
    if isinstance(found, str):
        return xxh3_128_digest(found.encode("utf-8", "surrogatepass"))
    try:
        return xxh3_128_digest(orjson.dumps(found))
    except orjson.JSONEncodeError:  # nested more than orjson takes; no client's library makes such
        return b""
