"""Audio: transcriptions from a multipart form, speech as bytes. What is heard and said is drawn like any
other answer."""

import struct
from email import message_from_bytes

import orjson

from loadtests import ask as asks
from loadtests import refusals
from loadtests.ask import Ask, Body
from loadtests.http1 import Exchange
from loadtests.vocabulary import Vocabulary
from loadtests.wire import Wire

BYTES_PER_SECOND = 32_000  # 16 kHz, 16 bit, one channel
PROMPT_TOKENS_PER_SECOND = 50  # Whisper's encoder: 1,500 positions for 30 s
OUTPUT_TOKENS_PER_SECOND = 4  # of speech heard
BYTES_PER_TOKEN = 8_000  # of speech made


class TranscriptionWire(Wire):
    """/v1/audio/transcriptions and translations."""

    prefix = "trsc-"

    @staticmethod
    def read(exchange: Exchange, vocabulary: Vocabulary) -> Ask:
        """Read a form.

        Raises:
            Refused: It is no form, or lacks the file or the model.
        """
        head = f"Content-Type: {exchange.header('content-type') or ''}\r\n\r\n"
        form: dict[str, bytes] = {}
        for part in message_from_bytes(head.encode("latin-1", "replace") + exchange.body).walk():
            name = part.get_param("name", header="content-disposition")
            payload = part.get_payload(decode=True)
            if isinstance(name, str) and isinstance(payload, bytes):
                form[name] = payload
        for field in ("file", "model"):
            if field not in form:
                raise refusals.missing(field)
        seconds = max(1, len(form["file"]) // BYTES_PER_SECOND)
        sound = form["file"][:4096].hex()  # what is heard depends on how it begins
        size = seconds * PROMPT_TOKENS_PER_SECOND
        prompt = (vocabulary.cut(sound) * (1 + size // 16))[:size]
        ask = asks.read({"model": form["model"].decode("utf-8", "replace")}, [prompt or [b" "]], None, vocabulary)
        ask.output_tokens = seconds * OUTPUT_TOKENS_PER_SECOND
        return ask

    def whole(self) -> bytes:
        """Render the text."""
        seconds = max(1, self.made // OUTPUT_TOKENS_PER_SECOND)
        return orjson.dumps({"text": self.choices[0].text(), "usage": {"type": "duration", "seconds": seconds}})


class SpeechWire(Wire):
    """/v1/audio/speech."""

    prefix = "speech-"
    media = "audio/wav"

    @staticmethod
    def read(body: Body, vocabulary: Vocabulary) -> Ask:
        """Read a request.

        Raises:
            Refused: It is wrong.
        """
        text = body.get("input")
        if not isinstance(text, str) or not text:
            raise refusals.missing("input")
        ask = asks.read(body, [vocabulary.cut(text)], None, vocabulary)
        ask.is_stream = False
        ask.output_tokens = len(ask.prompts[0])
        return ask

    def whole(self) -> bytes:
        """Render a WAV file whose samples are every byte there is, so that nothing may take it for text."""
        sound = bytes(range(256)) * (self.made * BYTES_PER_TOKEN // 256)
        head = b"RIFF" + struct.pack("<I", 36 + len(sound)) + b"WAVEfmt "
        head += struct.pack("<IHHIIHH", 16, 1, 1, BYTES_PER_SECOND // 2, BYTES_PER_SECOND, 2, 16)
        return head + b"data" + struct.pack("<I", len(sound)) + sound
