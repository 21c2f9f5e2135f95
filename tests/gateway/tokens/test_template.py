"""Chat templates: rendered as engines render them, and kept from doing harm."""

import contextlib
import re
from typing import Any

import jinja2
import pytest

from gateway.tokens import template as rules
from gateway.tokens.content import OddBody, normalise, normalise_tools
from gateway.tokens.template import ChatTemplate, ChatTemplates, NotRendered

HELLO: Any = [{"role": "user", "content": "hi"}]


def render(source: str, messages: Any = HELLO, **arguments: Any) -> str:
    return ChatTemplate(source, {"eos_token": "</s>"}).render(messages, **arguments)


def test_blocks_are_trimmed_and_loops_can_be_left() -> None:
    lines = [
        "{% for m in messages %}",
        "  {% if m.role == 'user' %}",
        "{{ m.content }}",
        "  {% break %}",
        "  {% endif %}",
    ]
    source = "\n".join([*lines, "{% endfor %}"])
    assert render(source, [*HELLO, {"role": "user", "content": "no"}]) == "hi\n"


def test_json_is_as_python_writes_it() -> None:
    value = [{"role": "user", "content": "<é> & 'x'"}]
    assert render("{{ messages[0] | tojson }}", value) == '{"role": "user", "content": "<é> & \'x\'"}'
    assert render("{{ messages[0] | tojson(indent=1) }}", value).count("\n") == 3


def test_a_template_knows_special_tokens_the_date_and_what_it_is_given() -> None:
    assert render("{{ eos_token }}{{ x }}{{ y is defined }}", variables={"x": 1, "z": 2}) == "</s>1False"
    assert render("{{ eos_token }}", variables={"eos_token": "!"}) == "!"
    assert re.fullmatch(r"20\d\d-\d\d", render("{{ strftime_now('%Y-%m') }}"))
    assert render("{% generation %}{{ messages[0].content }}{% endgeneration %}") == "hi"


def test_a_template_that_raises_renders_nothing() -> None:
    for source in ("{{ raise_exception('no tools') }}", "{{ 1 / 0 }}", "{{ messages.foo.bar }}", "{{ messages + 1 }}"):
        with pytest.raises(NotRendered):
            render(source)
    with pytest.raises(NotRendered, match="no messages"):
        render("x", [])


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ messages[0]['__class__'].__init__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'a': 1}) }}",
        "{{ messages[0].pop('role') }}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
        "{{ raise_exception.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.environ }}",
        "{{ range.__call__.__globals__ }}",
        "{{ range._left.real }}",
        "{% include 'x' %}",
        "{% import 'os' as os %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_a_template_reaches_nothing_but_what_it_is_given(source: str) -> None:
    messages = [{"role": "user", "content": "hi"}]
    template = ChatTemplate(source, {})
    shown = ""
    for _ in range(2):  # what was found safe once is not asked again
        with contextlib.suppress(NotRendered):
            shown += template.render(messages)
    assert shown == ""
    assert messages == HELLO


def test_what_was_safe_of_one_type_is_not_safe_of_another() -> None:
    template = ChatTemplate("{{ messages[0].content.split('i') | length }}{{ x.split }}", {})
    assert template.render(HELLO, variables={"x": {"split": "data"}}) == "2data"
    assert template.render(HELLO, variables={"x": {"other": 1}}) == "2"


def test_members_named_like_methods_are_what_jinja_makes_of_them() -> None:
    value = [{"role": "user", "items": 1, "content": "x", "nothing": None}]
    plain = jinja2.sandbox.ImmutableSandboxedEnvironment()
    source = "{{ messages[0].items is callable }}{{ messages[0].missing is defined }}{{ messages[0].nothing }}"
    assert render(source, value) == plain.from_string(source).render(messages=value)


def test_loops_are_bounded_in_all_they_do_together() -> None:
    with pytest.raises(NotRendered, match="loops more than"):
        render("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}")
    assert render("{% for a in range(3) %}{{ a }}{% endfor %}") == "012"
    assert render("{{ range(2, 8, 3) | list }}") == "[2, 5]"


def test_output_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MAX_RENDERED_CHARS", 100)
    with pytest.raises(NotRendered, match="writes more than"):
        render("{% for a in range(99) %}{{ a }}{{ messages }}{% endfor %}")


def test_a_final_message_is_left_open() -> None:
    source = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
    trimming = "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}"
    messages = [*HELLO, {"role": "assistant", "content": "so far "}]
    final: dict[str, Any] = {"add_generation_prompt": False, "continue_final_message": True}
    assert render(source, messages, **final) == "[hi][so far "
    assert render(trimming, messages, **final) == "[hi][so far"
    parts = [*HELLO, {"role": "assistant", "content": [{"type": "text", "text": "so"}, {"type": "image"}]}]
    by_part = "{% for m in messages %}{% for c in m.content %}[{{ c.text }}]{% endfor %}{% endfor %}"
    assert render(by_part, parts[1:], **final) == "[so"
    wrong: Any = (
        [{"role": "assistant", "content": None}],
        [{"role": "assistant", "content": [{"type": "image"}]}],
    )
    for bad in wrong:
        with pytest.raises(NotRendered):
            render(source, bad, **final)
    with pytest.raises(NotRendered):
        render("{{ messages[0].role + 'content' }}", messages, **final)
    assert messages[-1] == {"role": "assistant", "content": "so far "}


def test_tools_have_a_template_of_their_own_where_there_is_one() -> None:
    templates = ChatTemplates({"default": "d", "tool_use": "t"}, {})
    assert [templates.choose(has_tools=has).render(HELLO) for has in (False, True)] == ["d", "t"]
    assert ChatTemplates({"default": "d"}, {}).choose(has_tools=True).render(HELLO) == "d"
    with pytest.raises(NotRendered):
        ChatTemplates({"rag": "r"}, {}).choose(has_tools=False)


@pytest.mark.parametrize(
    ("source", "by_part"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", False),
        ("{% for m in messages %}{% for c in m.content %}x{% endfor %}{% endfor %}", True),
        ("{% for m in messages[1:] %}{% for c in m['content'] %}x{% endfor %}{% endfor %}", True),
        ("{% set ms = messages %}{% for m in ms | list %}{% for c in m.content %}x{% endfor %}{% endfor %}", True),
        ("{% for m in messages %}{% set content = m.content %}{% for c in content %}x{% endfor %}{% endfor %}", True),
        (
            "{% macro f(x) %}{% for c in x %}{% endfor %}{% endmacro %}"
            "{% for m in messages %}{{ f(m.content) }}{% endfor %}",
            True,
        ),
        (
            "{% macro f(x) %}{% for c in x %}{% endfor %}{% endmacro %}"
            "{% for m in messages %}{{ f(x=m.content) }}{% endfor %}",
            True,
        ),
        ("{% macro f(content) %}{% for c in content %}y{% endfor %}{% endmacro %}{{ f(tools) }}", False),
        ("{% for t in tools %}{{ t }}{% endfor %}", False),
    ],
)
def test_whether_content_is_read_by_part(source: str, by_part: bool) -> None:
    assert ChatTemplate(source, {}).is_by_part is by_part


def test_parts_keep_what_only_the_template_knows() -> None:
    content = [{"type": "text", "text": "a", "cache_control": 1}, {"type": "input_text", "text": "b"}, "c"]
    (message,) = normalise([{"role": "user", "content": content}], [], by_part=True, knows_developers=True)
    texts = [
        {"type": "text", "text": "a", "cache_control": 1},
        {"type": "text", "text": "b"},
        {"type": "text", "text": "c"},
    ]
    assert message["content"] == texts


def test_developers_come_under_one_system_prompt() -> None:
    given = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "U"},
        {"role": "developer", "content": [{"type": "text", "text": "D"}], "tools": []},
    ]
    for by_part in (False, True):
        made = normalise(given, [], by_part=by_part, knows_developers=False)
        assert made[0] == {"role": "system", "content": "S\n\nD"}
        assert len(made) == 2
    assert normalise(given, [], by_part=False, knows_developers=True)[2]["role"] == "developer"


def test_tools_are_written_in_one_order() -> None:
    tool = {
        "function": {"strict": False, "parameters": {"b": 1, "a": 2}, "name": "f", "else": 1},
        "defer_loading": True,
    }
    assert str(normalise_tools([tool])) == (
        "[{'type': 'function', 'function': {'name': 'f', 'description': None, 'parameters': {'b': 1, 'a': 2}, "
        "'strict': False, 'defer_loading': True}, 'defer_loading': True}]"
    )
    wrong: Any = ({}, [1], [{"function": {"name": "f", "description": 1}}], [{"type": "web_search"}])
    for bad in wrong:
        with pytest.raises(OddBody):
            normalise_tools(bad)
