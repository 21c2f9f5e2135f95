"""Readers: each model's prompts are read by what the configuration names for it."""

from pathlib import Path

import pytest

from gateway.app import Gateway, StartError
from loadtests.faults import Fault, Kind
from tests.fleet_fixtures import CHAT, config, house, prompt
from tests.gateway_process import run
from tests.until import until

TOKENIZER = Path(__file__).parent.parent.parent / "loadtests" / "data" / "tokenizer"
QUICK = "anonymous: {}\npools: [{endpoints: [{url: 'http://h:1'}]}]\n"
LONG = "The quick brown fox jumps over the lazy dog. " * 40


def named(**fields: object) -> list[dict[str, object]]:
    return [{"name": "sim", **fields}]


async def test_a_tokenizer_counts_what_the_model_will_count_and_bytes_estimate_it() -> None:
    async with house(1, models=named(tokenizer=str(TOKENIZER))) as whole:
        await until(lambda: all(whole.gateway.readers.exactness().values()), "loaded")
        exact = int((await whole.ask(LONG)).headers["x-kvlane-prompt-tokens"])
        other = int((await whole.ask(LONG, model="sim")).headers["x-kvlane-prompt-tokens"])
        assert exact == other
    async with house(1) as whole:
        estimate = int((await whole.ask(LONG)).headers["x-kvlane-prompt-tokens"])
    assert estimate == pytest.approx(len(LONG) / 4, rel=0.05)
    assert exact != estimate


async def test_an_engine_that_is_asked_counts_as_it_counts() -> None:
    async with house(2, models=named(tokenizer="engine")) as whole:
        for text in (LONG, LONG + "more", "短い日本語の文"):
            reply = await whole.ask(text)
            assert int(reply.headers["x-kvlane-prompt-tokens"]) == reply.json["usage"]["prompt_tokens"]
        again = await whole.ask(LONG)
        cached = again.json["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert 0 <= cached - int(again.headers["x-kvlane-cached-tokens"]) < 64


async def test_an_engine_that_does_not_say_leaves_an_estimate() -> None:
    async with house(1, models=named(tokenizer="engine")) as whole:
        await whole.cluster[0].inject(Fault(Kind.STATUS, status=500, paths=("/tokenize",), body="no"))
        reply = await whole.ask(LONG)
        assert reply.status == 200
        assert int(reply.headers["x-kvlane-prompt-tokens"]) == pytest.approx(len(LONG) / 4, rel=0.05)


async def test_a_template_of_the_operators_takes_the_place_of_the_tokenizers_own(tmp_path: Path) -> None:
    template = tmp_path / "plain.jinja"
    template.write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    counts = []
    for fields in ({}, {"chat_template": str(template)}):
        async with house(1, models=named(tokenizer=str(TOKENIZER), **fields)) as whole:
            await until(lambda: all(whole.gateway.readers.exactness().values()), "loaded")
            counts.append(int((await whole.post(CHAT, prompt("hello"))).headers["x-kvlane-prompt-tokens"]))
    assert counts[1] < counts[0]


async def test_p9_a_tokenizer_that_is_none_keeps_the_gateway_from_starting(tmp_path: Path) -> None:
    broken = tmp_path / "tokenizer.json"
    broken.write_text('{"no": "tokenizer"}')
    gateway = Gateway(config(["http://127.0.0.1:9"], models=named(tokenizer=str(broken))))
    with pytest.raises(StartError, match=r"models: sim: .*tokenizer\.json: is no tokenizer: "):
        await gateway.start()
    await gateway.stop()


@pytest.mark.parametrize(
    "broken", ['{"chat_template": 5}', '{"chat_template": [{"nm": "x"}]}', '{"added_tokens_decoder": {"x": {}}}']
)
async def test_p9_check_tells_what_serve_would_find(tmp_path: Path, broken: str) -> None:
    (tmp_path / "tokenizer.json").write_bytes((TOKENIZER / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(broken)
    file = tmp_path / "kvlane.yaml"
    file.write_text(QUICK + f"models: [{{name: m, tokenizer: {tmp_path}}}]\n")
    status, _, complaint = await run("check", str(file))
    assert (status, "models[0].tokenizer: " in complaint) == (2, True)
    gateway = Gateway(config(["http://127.0.0.1:9"], models=named(tokenizer=str(tmp_path))))
    with pytest.raises(StartError, match="models: sim: "):
        await gateway.start()
    await gateway.stop()


async def test_p9_an_unreadable_tokenizer_is_one_line_and_exit_2(tmp_path: Path) -> None:
    file = tmp_path / "kvlane.yaml"
    file.write_text(QUICK + "models: [{name: m, tokenizer: /no/such/place}]\n")
    for command in ("serve", "check"):
        status, _, complaint = await run(command, str(file))
        assert status == 2
        assert complaint.strip().endswith("models[0].tokenizer: there is no such file or folder, is '/no/such/place'")
