"""Where tokenizers come from, and what is wrong with those that cannot be loaded."""

import asyncio
import json
import shutil
import threading
from pathlib import Path

import pytest
from tokenizers import Tokenizer, processors

from gateway.tokens import PromptReader
from gateway.tokens.checks import cutter_for, encode_of, fast_encode_of
from gateway.tokens.encoding import Encoder
from gateway.tokens.exact import TokenReader
from gateway.tokens.loaded import LoadingReader, checked, token_reader
from gateway.tokens.loading import NotLoaded, load_tokenizer
from gateway.tokens.plain import TextReader
from tests.gateway.tokens.bodies import CHATS
from tests.gateway.tokens.conftest import CHAT, COMPLETION, ROOT, SMALL

HELLO = [{"role": "user", "content": "hi"}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SMALL, tmp_path / "model"))


def configure(folder: Path, **changes: object) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def rendered(folder: Path, *, has_tools: bool = False) -> str:
    templates = load_tokenizer(str(folder)).templates
    assert templates is not None
    return templates.choose(has_tools=has_tools).render(HELLO)


def test_a_file_and_its_folder_are_the_same(folder: Path) -> None:
    for source in (folder, folder / "tokenizer.json"):
        loaded = load_tokenizer(str(source))
        assert loaded.templates is not None
        assert (loaded.before, loaded.after) == ((), ())


def test_a_file_by_another_name_is_a_tokenizer_alone(folder: Path) -> None:
    alone = folder / "small.json"
    (folder / "tokenizer.json").rename(alone)
    assert load_tokenizer(str(alone)).templates is None


def test_templates_are_found_where_models_keep_them(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    assert load_tokenizer(str(folder)).templates is None
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "seeing"}))
    assert rendered(folder) == "seeing"
    configure(folder, chat_template="one")
    assert rendered(folder) == "one"
    configure(folder, chat_template=[{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}])
    assert (rendered(folder), rendered(folder, has_tools=True)) == ("d", "t")
    (folder / "chat_template.jinja").write_text("file")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("more")
    assert (rendered(folder), rendered(folder, has_tools=True)) == ("file", "more")


def test_special_tokens_are_variables_however_they_are_written(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ bos_token }}{{ eos_token }}{{ image_token }}")
    configure(folder, eos_token={"content": "<|im_end|>"}, extra_special_tokens={"image_token": "<img>"})
    (folder / "special_tokens_map.json").write_text(json.dumps({"bos_token": "<|endoftext|>", "eos_token": "no"}))
    configure(folder, bos_token="<|endoftext|>")
    assert rendered(folder) == "<|endoftext|><|im_end|><img>"


def test_tokens_of_the_configuration_are_added(folder: Path) -> None:
    configure(folder, added_tokens_decoder={"4096": {"content": "<extra>", "special": True, "normalized": False}})
    tokenizer = load_tokenizer(str(folder)).tokenizer
    assert tokenizer.encode("a<extra>b").tokens == ["a", "<extra>", "b"]


def test_what_goes_around_a_prompt_is_found(folder: Path) -> None:
    path = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    number = tokenizer.token_to_id("<|endoftext|>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A <|im_end|>",
        special_tokens=[("<|endoftext|>", number), ("<|im_end|>", tokenizer.token_to_id("<|im_end|>"))],
    )
    tokenizer.save(str(path))
    loaded = load_tokenizer(str(folder))
    assert (loaded.before, loaded.after) == ((number,), (tokenizer.token_to_id("<|im_end|>"),))


async def test_what_goes_around_a_prompt_is_read_with_it(folder: Path, encoder: Encoder) -> None:
    path = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", tokenizer.token_to_id("<|endoftext|>"))]
    )
    tokenizer.save(str(path))
    reader = token_reader(str(folder), encoder, TextReader(), is_fast_wanted=False)
    for text in ("Once", ""):
        reading = await reader.read(COMPLETION, {"prompt": text}, ROOT, 16)
        assert reading.prompt_tokens == len(tokenizer.encode(text).ids)


def broken(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder)


def test_what_cannot_be_loaded_is_told_in_a_line(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for source in ("/nowhere/at/all", "./nowhere", "nowhere.json", "three/part/name", str(tmp_path / "empty")):
        with pytest.raises(NotLoaded, match=r"no such file or folder|has no tokenizer\.json") as raised:
            load_tokenizer(source)
        assert source in str(raised.value)
    broken(folder, "chat_template.jinja", "{% for x in %}")
    with pytest.raises(NotLoaded, match="is no template"):
        load_tokenizer(str(folder))
    for name in ("tokenizer_config.json", "tokenizer.json"):
        with pytest.raises(NotLoaded, match=name) as raised:
            load_tokenizer(broken(folder, name, "{\n"))
        assert "\n" not in str(raised.value)


def test_a_hub_that_is_not_there_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    done = threading.Event()

    def never(*_: object) -> str:
        done.wait()
        raise OSError

    monkeypatch.setattr("gateway.tokens.loading.hf_hub_download", never)
    with pytest.raises(NotLoaded, match=r"nobody/model: the hub has not answered within 0\.01 s"):
        load_tokenizer("nobody/model", hub_patience_s=0.01)
    done.set()


async def test_a_model_is_read_as_text_until_its_tokenizer_is_there(encoder: Encoder) -> None:
    may_load = threading.Event()

    def load() -> PromptReader:
        may_load.wait()
        return token_reader(str(SMALL), encoder, TextReader(), is_fast_wanted=False)

    reader = LoadingReader(load, TextReader(), "small")
    loading = asyncio.create_task(reader.load())
    body = CHATS["tools"]
    assert not (await reader.read(CHAT, body, ROOT, 16)).is_exact
    assert not reader.is_loaded
    may_load.set()
    await loading
    assert (await reader.read(CHAT, body, ROOT, 16)).is_exact
    assert reader.is_loaded


async def test_a_model_without_a_tokenizer_is_read_as_text_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    reader = LoadingReader(lambda: token_reader("/nowhere", Encoder(), TextReader()), TextReader(), "small")
    await reader.load()
    assert reader.problem == "/nowhere: there is no such file or folder"
    assert caplog.messages == ["model small is read without its tokenizer: /nowhere: there is no such file or folder"]
    assert not (await reader.read(CHAT, CHATS["tools"], ROOT, 16)).is_exact


def test_a_tokenizer_whose_ids_change_where_it_is_cut_is_not_cut(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = load_tokenizer(str(folder))
    exact = encode_of(loaded.tokenizer)
    assert checked("small", loaded, is_fast_wanted=False).cutter.tokens == ("<|im_start|>",)

    def odd(text: str, /) -> list[int]:
        return [len(text), *exact(text)]

    assert cutter_for(loaded.tokenizer, odd, ["<|im_start|>"], "odd").tokens == ()
    assert "not kept by segment" in caplog.text


def test_a_faster_tokenizer_is_used_only_where_it_agrees(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("fastokens")
    tokenizer = load_tokenizer(str(SMALL)).tokenizer
    exact = encode_of(tokenizer)
    fast = fast_encode_of(tokenizer, exact, "small")
    assert fast is not None
    assert list(fast("To be, or not to be?")) == list(exact("To be, or not to be?"))
    assert fast_encode_of(tokenizer, lambda text: [*exact(text), 1], "small") is None
    assert caplog.messages == ["small: fastokens does not find its ids, and is not used"]


def test_a_reader_of_the_small_tokenizer_reads_its_chats(encoder: Encoder) -> None:
    assert isinstance(token_reader(str(SMALL), encoder, TextReader()), TokenReader)
