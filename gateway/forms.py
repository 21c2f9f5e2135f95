"""Read one short field of a multipart form, exactly as every engine's parser would, or not at all.

The model that a tenant names decides what it may use, so the gateway and the engine must read the same one. Parsers
differ in what they forgive: two boundaries, two dispositions in a part, escapes, preambles, folded lines. Nothing of
that is forgiven here: a form that could be read in two ways is refused. Files beside the field are skipped, not copied.
"""

import re
from typing import NamedTuple

from gateway.errors import InvalidBody, InvalidField

MAX_HEAD_BYTES = 8192  # of one part
_BCHARS = r"[0-9A-Za-z'()+_,./:=?-]{1,70}"  # RFC 2046, without the space
_CONTENT_TYPE = re.compile(
    rf"multipart/form-data\s*;\s*boundary=(?:\"(?P<quoted>{_BCHARS})\"|(?P<bare>[0-9A-Za-z'()+_./:?-]{{1,70}}))"
    r"(?:\s*;\s*charset=\"?[A-Za-z0-9_-]{1,20}\"?)?\s*",
    re.IGNORECASE,
)
_VALUE = rb'(?:"(?:[^"\\\r\n]|\\[^\r\n])*"|[^\s";,\\]+)'
_DISPOSITION = re.compile(rb"form-data((?:\s*;\s*(?:name|filename\*?)=" + _VALUE + rb")*)\s*", re.IGNORECASE)
_PARAMETER = re.compile(rb";\s*([A-Za-z*]+)=(" + _VALUE + rb")")


class FormField(NamedTuple):
    """The value of a field, and where in the body it stands."""

    value: str
    start: int
    end: int


def read_field(content_type: str, body: bytes, wanted: str, most_bytes: int) -> FormField | None:
    """Find a field, None where there is none; a value that is longer than `most_bytes` is cut.

    Raises:
        InvalidBody: the form could be read in more than one way.
        InvalidField: the field is there more than once.
    """
    match = _CONTENT_TYPE.fullmatch(content_type)
    if match is None:
        raise InvalidBody("the body must be multipart/form-data with one plain boundary")
    delimiter = b"--" + (match["quoted"] or match["bare"]).encode()
    if not body.startswith(delimiter):
        raise InvalidBody("the form must begin with its boundary")
    found: FormField | None = None
    position = len(delimiter)
    while body[position : position + 2] != b"--":
        end = body.find(b"\r\n" + delimiter, position)
        head_end = body.find(b"\r\n\r\n", position, min(end, position + MAX_HEAD_BYTES) + 4)
        if end < 0 or head_end < 0 or head_end > end or body[position : position + 2] != b"\r\n":
            raise InvalidBody("the form has a part without an end, or with a head that is none")
        if _name_of(body[position + 2 : head_end]) == wanted.encode():
            if found is not None:
                raise InvalidField(f"the form has more than one field `{wanted}`", param=wanted)
            start = head_end + 4
            found = FormField(body[start : min(end, start + most_bytes)].decode("utf-8", "replace"), start, end)
        position = end + 2 + len(delimiter)
    if body[position + 2 :].strip():
        raise InvalidBody("the form goes on behind its end")
    return found


def _name_of(head: bytes) -> bytes:
    """Give the name of a part; every part has exactly one."""
    names: list[bytes] = []
    for line in head.split(b"\r\n"):
        key, colon, value = line.partition(b":")
        if not colon or key != key.strip() or b"\n" in line or b"\r" in line:
            raise InvalidBody("the form has a part with a folded or broken header")
        if key.lower() == b"content-disposition":
            disposition = _DISPOSITION.fullmatch(value.strip())
            if disposition is None:
                raise InvalidBody("the form has a part whose content-disposition is not plain form-data")
            names += [value for key, value in _PARAMETER.findall(disposition[1]) if key.lower() == b"name"]
    if len(names) != 1 or b"\\" in names[0]:
        raise InvalidBody("the form has a part without one plain name")
    return names[0].strip(b'"')
