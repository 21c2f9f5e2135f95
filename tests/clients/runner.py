"""Run scenarios with openai-python, 1.x or later: one a line in, one a line out.

    PYTHON runner.py < lines

A line is `{"base_url": ..., "steps": [...]}`; the answer is the list of what each step came to. It needs
nothing but the openai package, since it runs in other virtual environments than ours. runner.mjs is its twin
for Node.
"""

import json
import operator
import sys
from collections.abc import Iterator, Mapping, Sequence

import openai

NO_KEY = "sk-none"  # neither the engines nor this gateway ask for one
DEFAULT_TIMEOUT_S = 20.0


def plain(value: object) -> object:
    """Turn a result into plain JSON data: models as they came, pages as their list, binary answers as text."""
    to_dict = getattr(value, "to_dict", None)
    if to_dict is not None:
        return to_dict(mode="json", warnings=False)  # embeddings in base64 are typed as floats
    if isinstance(value, (str, int, float, bool, dict, list)) or value is None:
        return value
    raise TypeError(f"no plain form for {type(value).__name__}")


def failure(error: Exception) -> dict[str, object]:
    """Tell an exception as the caller sees it: its class, and the parts of the error body it carries."""
    names = ("status_code", "code", "param", "type", "body", "request_id")
    told = {name: getattr(error, name) for name in names if hasattr(error, name)}
    return {"error": type(error).__name__, **told}


def filled(value: object, done: Sequence[Mapping[str, object]]) -> object:
    """Replace each `{"$id_of": n}` by the id of step n's result."""
    if isinstance(value, dict):
        if "$id_of" in value:
            result = done[value["$id_of"]]["result"]
            assert isinstance(result, dict)
            return result["id"]
        return {key: filled(item, done) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item, done) for item in value]
    return value


def step(client: openai.OpenAI, words: Mapping[str, object], done: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Make one call; what is raised is part of the outcome."""
    options = words.get("options", {})
    assert isinstance(options, dict)
    client = client.with_options(
        timeout=options.get("timeout_s", DEFAULT_TIMEOUT_S), max_retries=options.get("max_retries", 0)
    )
    body = filled(words.get("body", {}), done)
    args = filled(words.get("args", []), done)
    assert isinstance(body, dict)
    assert isinstance(args, list)
    if words["call"] == "post":  # a path that has no method of its own
        body = {"cast_to": object, "body": body}
    if "extra" in words:
        body["extra_body"] = words["extra"]
    chunks: list[object] = []
    try:
        result = operator.attrgetter(str(words["call"]))(client)(*args, **body)
        if not body.get("stream"):
            return {"result": plain(result), "request_id": getattr(result, "_request_id", None)}
        for chunk in result:
            chunks.append(plain(chunk))
            if len(chunks) == words.get("take"):
                result.close()
                return {"chunks": chunks, "left": True}
    except Exception as error:
        return {"chunks": chunks, **failure(error)} if body.get("stream") else failure(error)
    return {"chunks": chunks, "left": False}


def outcomes(lines: Iterator[str]) -> Iterator[list[dict[str, object]]]:
    """Run each line's steps in order with one client per line's address."""
    clients: dict[str, openai.OpenAI] = {}
    for line in lines:
        order = json.loads(line)
        url = order["base_url"]
        client = clients.setdefault(url, openai.OpenAI(base_url=url, api_key=NO_KEY))
        done: list[dict[str, object]] = []
        for words in order["steps"]:
            done.append(step(client, words, done))
        yield done


if __name__ == "__main__":
    for answer in outcomes(iter(sys.stdin.readline, "")):
        print(json.dumps(answer), flush=True)
