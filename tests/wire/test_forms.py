"""Forms: audio comes as multipart bodies, whose `model` is a field among files."""

from collections.abc import Iterable

import pytest

from gateway.app import Gateway
from loadtests.server import SimulatedEngine
from tests.wire.client import call
from tests.wire.house import asked, serving, tenant

FORM_ROUTES = ("/v1/audio/transcriptions", "/v1/audio/translations")
BOUNDARY = "--------------------------d74496d66958873e"
MULTIPART = [("Content-Type", f"multipart/form-data; boundary={BOUNDARY}")]
SOUND = bytes(range(256)) * 300 + b"\r\n--not the boundary\r\n\r\n"


def form(*parts: tuple[str, bytes]) -> bytes:
    """Write a form; each part is given as what stands in its disposition, and its content."""
    written = [
        f"--{BOUNDARY}\r\nContent-Disposition: form-data; {what}\r\n\r\n".encode() + content + b"\r\n"
        for what, content in parts
    ]
    return b"".join(written) + f"--{BOUNDARY}--\r\n".encode()


FILE = ('name="file"; filename="speech.wav"', SOUND)


def model_part(name: str) -> tuple[str, bytes]:
    return 'name="model"', name.encode()


@pytest.mark.parametrize("route", FORM_ROUTES)
async def test_a_form_passes_as_it_came(gateway: Gateway, engine: SimulatedEngine, route: str) -> None:
    body = form(FILE, model_part("sim"), ('name="language"', b"en"))
    answer = await call(gateway.url, route, body, MULTIPART)
    assert answer.status == 200
    assert answer.json["text"]
    (seen,) = asked(engine)
    assert seen.body == body
    assert dict(seen.headers)["Content-Type"] == MULTIPART[0][1]


async def test_a_form_without_a_model_is_refused(gateway: Gateway, engine: SimulatedEngine) -> None:
    answer = await call(gateway.url, FORM_ROUTES[0], form(FILE), MULTIPART)
    assert answer.refusal == (400, "invalid_request_error", "missing_field")
    assert not asked(engine)


@pytest.mark.parametrize("content_type", ["application/json", "multipart/form-data", "multipart/mixed; boundary=x", ""])
async def test_what_is_no_form_is_refused(gateway: Gateway, engine: SimulatedEngine, content_type: str) -> None:
    answer = await call(gateway.url, FORM_ROUTES[0], form(FILE, model_part("sim")), [("Content-Type", content_type)])
    assert answer.status == 400
    assert answer.error["type"] == "invalid_request_error"
    assert not asked(engine)


@pytest.mark.parametrize("name", ['"a; name=model"', '"a\\"; name=model"', "\"a'; name='model'\""])
async def test_a_file_name_cannot_pose_as_the_model(gateway: Gateway, name: str) -> None:
    body = form((f'name="file"; filename={name}', b"nope"), model_part("sim"))
    answer = await call(gateway.url, FORM_ROUTES[0], body, MULTIPART)
    assert answer.status == 200


@pytest.mark.parametrize("disposition", ["name=model", 'NAME="model"', 'filename=""; name="model"'])
async def test_the_model_is_found_however_its_part_is_spelt(gateway: Gateway, disposition: str) -> None:
    answer = await call(gateway.url, FORM_ROUTES[0], form(FILE, (disposition, b"sim")), MULTIPART)
    assert answer.status == 200


@pytest.mark.parametrize("models", [("sim", "secret"), ("secret", "sim")])
async def test_a_form_with_two_models_is_not_believed(engine: SimulatedEngine, models: Iterable[str]) -> None:
    """Engines take the last of two equal fields, so that checking the first would let a tenant past his list."""
    async with serving(
        engine.url, tenants=[tenant("a", models=["sim"])], endpoint={"models": ["sim", "secret"]}
    ) as gateway:
        body = form(FILE, *(model_part(model) for model in models))
        answer = await call(gateway.url, FORM_ROUTES[0], body, [*MULTIPART, ("Authorization", "Bearer a's key")])
        assert answer.status in (400, 403)
        assert answer.error
        assert not asked(engine)


B = BOUNDARY
GOOD = form(FILE, model_part("sim"))
HIDDEN = (
    f'--{B}\r\nContent-Disposition: form-data; name="junk"\r\n\r\n--A\r\n\r\n--{B}\r\n'.encode() + GOOD[len(B) + 4 :]
)
AMBIGUOUS = {
    "two boundaries": (f"multipart/form-data; xboundary=A; boundary={B}", GOOD),
    "a boundary twice": (f"multipart/form-data; boundary=A; boundary={B}", GOOD),
    "a boundary beyond ASCII": ("multipart/form-data; boundary=\xff\xfe", GOOD),
    "a boundary with a semicolon": (f'multipart/form-data; boundary="{B};A"', GOOD),
    "a preamble": (MULTIPART[0][1], b"preamble\r\n" + GOOD),
    "words behind the end": (MULTIPART[0][1], GOOD + b"more"),
    "no end": (MULTIPART[0][1], GOOD.replace(f"--{B}--".encode(), b"")),
    "two dispositions": (
        MULTIPART[0][1],
        GOOD.replace(b"Content-Disp", b'Content-Disposition: form-data; name="x"\r\nContent-Disp', 1),
    ),
    "a name twice": (MULTIPART[0][1], form(FILE, ('name="x"; name="model"', b"sim"))),
    "an unknown parameter": (MULTIPART[0][1], form(FILE, ('name="x"; x-name="model"', b"sim"))),
    "a name in the extended form": (MULTIPART[0][1], form(FILE, ("name*=utf-8''model", b"sim"))),
    "an escaped name": (MULTIPART[0][1], form(FILE, ('name="mo\\del"', b"sim"))),
    "a folded header": (MULTIPART[0][1], form(FILE, ('name="x";\r\n name="model"', b"sim"))),
    "a long head": (MULTIPART[0][1], form(FILE, ('name="model"\r\nX-Long: ' + "x" * 9000, b"sim"))),
}


@pytest.mark.parametrize(("content_type", "body"), AMBIGUOUS.values(), ids=AMBIGUOUS)
async def test_a_form_that_could_be_read_in_two_ways_is_refused(
    gateway: Gateway, engine: SimulatedEngine, content_type: str, body: bytes
) -> None:
    """What the gateway reads as one model and an engine as another lets a tenant past his list."""
    answer = await call(gateway.url, FORM_ROUTES[0], body, [("Content-Type", content_type)])
    assert answer.status == 400, answer
    assert answer.error["type"] == "invalid_request_error"
    assert not asked(engine)


async def test_a_boundary_inside_a_part_is_read_as_every_parser_does(gateway: Gateway, engine: SimulatedEngine) -> None:
    answer = await call(gateway.url, FORM_ROUTES[0], HIDDEN, MULTIPART)
    assert answer.status == 200
