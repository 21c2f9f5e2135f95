"""Undo the compression of an answer, piece by piece, within bounds.

Engines are not asked to compress; some proxy before an engine does it all the same. gzip may have several members one
behind the other, and what is called deflate may lack its zlib header: both are read. A piece that expands without
measure is refused: 256 KB of zeros squeezed ten thousandfold would stop everybody's streams.
"""

import zlib

MAX_EXPANDED_BYTES = 16 << 20  # of one read; honest JSON shrinks some twentyfold, a read has 256 KB at most
GZIP, ZLIB, RAW = 31, 15, -15  # zlib's names for what stands around the data
ENCODINGS = {b"gzip": GZIP, b"x-gzip": GZIP, b"deflate": ZLIB}


class BadPacking(Exception):
    """What came is not packed as it says."""


class Unpacker:
    """Unpacks one body."""

    def __init__(self, encoding: bytes) -> None:
        self._bits = ENCODINGS[encoding]
        self._decoder = zlib.decompressobj(wbits=self._bits)
        self._is_begun = False

    @property
    def is_whole(self) -> bool:
        """Whether the packed data has come to its end."""
        return self._decoder.eof

    def feed(self, data: bytes) -> bytes:
        """Unpack a piece.

        Raises:
            BadPacking: it is broken, goes on behind its end, or expands without measure.
        """
        unpacked: list[bytes] = []
        left = MAX_EXPANDED_BYTES
        while data:
            if self._decoder.eof:
                if self._bits != GZIP:
                    raise BadPacking("there is more behind its end")
                self._decoder = zlib.decompressobj(wbits=GZIP)
            piece = self._decompress(data, left)
            unpacked.append(piece)
            left -= len(piece)
            if self._decoder.unconsumed_tail or left <= 0:
                raise BadPacking(f"a piece of {len(data)} bytes expands to more than {MAX_EXPANDED_BYTES}")
            data = self._decoder.unused_data
        return b"".join(unpacked)

    def _decompress(self, data: bytes, most: int) -> bytes:
        try:
            piece = self._decoder.decompress(data, most)
        except zlib.error as error:
            if self._bits != ZLIB or self._is_begun:
                raise BadPacking(str(error)) from error
            self._bits = RAW
            self._decoder = zlib.decompressobj(wbits=RAW)
            return self._decompress(data, most)
        self._is_begun = True
        return piece
