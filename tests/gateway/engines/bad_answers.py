"""Every bad answer that engines are known to give: status, body, verdict, and what a client sees of it."""

import orjson

from gateway.engines.answers import Verdict

CLIENT, OVER_LENGTH, BUSY, BROKEN = Verdict.CLIENT, Verdict.OVER_LENGTH, Verdict.BUSY, Verdict.BROKEN
JSON = {"content-type": "application/json"}
TOO_LONG = "context_length_exceeded"
INVALID = "invalid_request_error"


def nested(message: str, type_: str, code: int, param: str | None = None) -> bytes:
    """Spell an error as vLLM does since 0.10."""
    return orjson.dumps({"error": {"message": message, "type": type_, "param": param, "code": code}})


def flat(message: str, type_: str, code: int, param: str | None = None) -> bytes:
    """Spell an error as SGLang, TensorRT-LLM and vLLM until 0.9 do."""
    return orjson.dumps({"object": "error", "message": message, "type": type_, "param": param, "code": code})


def shaped(message: str, type_: str, code: str | None, param: str | None = None) -> bytes:
    """Spell an error as a client is to see it."""
    return orjson.dumps({"error": {"message": message, "type": type_, "param": param, "code": code}})


VLLM_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
VLLM_DRAINS = "cannot schedule new futures after shutdown"
VLLM_BUSY = (
    "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
)
VLLM_OLD_LENGTH = (
    "This model's maximum context length is 2048 tokens. However, you requested 3000 tokens (2500 in the messages, "
    "500 in the completion). Please reduce the length of the messages or completion."
)
SGLANG_LENGTH = "The input (15022 tokens) is longer than the model's context length (2048 tokens)."
SGLANG_TOTAL = (
    "Requested token count exceeds the model's maximum context length of 2048 tokens. You requested a total of 2100 "
    "tokens: 2000 tokens from the input messages and 100 tokens for the completion. Please reduce the number of tokens "
    "in the input messages or the completion to fit within the limit."
)
TRTLLM_LENGTHS = (
    "The sum of prompt length (72417.0), query length (0) should not exceed max_num_tokens (69632)",
    "`default_max_tokens` (-152) must be greater than 0, `default_max_tokens` (-152) = max_seq_len (8192) - "
    "`splited_prompt_len` (8000) - `query_token_len` (344)",
    "The sum of prompt length (4000) and query length (0) max_tokens (2048) should not exceed max_seq_len (4096)",
)
TGI_LENGTHS = (
    "Input validation error: `inputs` must have less than 4096 tokens. Given: 5000",
    "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens and 500 "
    "`max_new_tokens`",
)

CAPTURED = {
    "vllm_overlong_chat.txt": (400, OVER_LENGTH),
    "vllm_overlong_chat_stream.txt": (400, OVER_LENGTH),
    "vllm_overlong_completion.txt": (400, OVER_LENGTH),
    "vllm_overlong_maxtokens.txt": (400, OVER_LENGTH),
    "vllm_badmodel.txt": (404, CLIENT),
    "vllm_badjson.txt": (400, CLIENT),
    "vllm_badtype.txt": (400, CLIENT),
    "vllm_badtemp.txt": (400, CLIENT),
    "llama_overlong_chat.txt": (400, OVER_LENGTH),
    "llama_overlong_chat_stream.txt": (400, OVER_LENGTH),
    "llama_badjson.txt": (400, CLIENT),
    "llama_badtype.txt": (400, CLIENT),
    "llama_unknownpath.txt": (404, CLIENT),
    "llama_metrics_disabled.txt": (501, CLIENT),
    "llama_health_loading.txt": (503, BUSY),
}

PASSED = [
    (500, nested(VLLM_DEAD, "InternalServerError", 500), BROKEN),
    (500, nested(VLLM_DRAINS, "InternalServerError", 500), BROKEN),
    (503, nested(VLLM_BUSY, "Service Unavailable", 503), BUSY),
    (
        503,
        nested("The engine has reached its prefill token backlog limit. Try later.", "Service Unavailable", 503),
        BUSY,
    ),
    (400, nested(VLLM_OLD_LENGTH, "BadRequestError", 400), OVER_LENGTH),
    (400, nested("data_parallel_rank 7 is out of range [0, 1).", "BadRequestError", 400), CLIENT),
    (400, nested("top_k must be <= 100, got 200", "BadRequestError", 400), CLIENT),
    (503, b'{"error":{"code":503,"message":"no slot available","type":"unavailable_error"}}', BUSY),
    (
        500,
        b'{"error":{"code":500,"message":"input (700 tokens) is too large to process. increase the physical batch size '
        b'(current batch size: 512)","type":"server_error"}}',
        OVER_LENGTH,
    ),
    (
        400,
        b'{"error":{"message":"Too long.","type":"invalid_request_error","code":"context_length_exceeded"}}',
        OVER_LENGTH,
    ),
    (418, b' {"error": {}}\n', CLIENT),
]

PUT_IN_SHAPE = [
    # vLLM until 0.9, SGLang, TensorRT-LLM: flat
    (400, flat(VLLM_OLD_LENGTH, "BadRequestError", 400), OVER_LENGTH, shaped(VLLM_OLD_LENGTH, INVALID, TOO_LONG)),
    (400, flat(SGLANG_LENGTH, "BadRequest", 400), OVER_LENGTH, shaped(SGLANG_LENGTH, INVALID, TOO_LONG)),
    (400, flat(SGLANG_TOTAL, "BadRequestError", 400), OVER_LENGTH, shaped(SGLANG_TOTAL, INVALID, TOO_LONG)),
    *(
        (400, flat(message, "BadRequestError", 400), OVER_LENGTH, shaped(message, INVALID, TOO_LONG))
        for message in TRTLLM_LENGTHS
    ),
    (
        503,
        flat("The request queue is full.", "503", 503),
        BUSY,
        shaped("The request queue is full.", "service_unavailable_error", "server_overloaded"),
    ),
    (
        404,
        flat("The model `nope` does not exist.", "NotFoundError", 404),
        CLIENT,
        shaped("The model `nope` does not exist.", INVALID, "model_not_found", "model"),
    ),
    (400, flat("no", "BadRequestError", 400, "top_p"), CLIENT, shaped("no", INVALID, None, "top_p")),
    (
        400,
        b'{"object":"error","message":"no","code":"unsupported_value"}',
        CLIENT,
        shaped("no", INVALID, "unsupported_value"),
    ),
    (400, b'{"object":"error","message":"no","code":"400"}', CLIENT, shaped("no", INVALID, None)),
    (400, b'{"error":"1 validation error: foo"}', CLIENT, shaped("1 validation error: foo", INVALID, None)),
    (
        500,
        flat("CUDA error", "InternalServerError", 500),
        BROKEN,
        shaped("CUDA error", "server_error", "upstream_error"),
    ),
    # TGI: error and error_type
    *(
        (
            422,
            orjson.dumps({"error": message, "error_type": "validation"}),
            OVER_LENGTH,
            shaped(message, INVALID, TOO_LONG),
        )
        for message in TGI_LENGTHS
    ),
    (
        422,
        b'{"error":"Input validation error: `top_k` must be <= 100","error_type":"validation"}',
        CLIENT,
        shaped("Input validation error: `top_k` must be <= 100", INVALID, None),
    ),
    (
        429,
        b'{"error":"Model is overloaded","error_type":"overloaded"}',
        BUSY,
        shaped("Model is overloaded", "rate_limit_error", "server_overloaded"),
    ),
    (
        424,
        b'{"error":"Request failed during generation: oom","error_type":"generation"}',
        BROKEN,
        shaped("Request failed during generation: oom", "server_error", "upstream_error"),
    ),
    (
        500,
        b'{"error":"Incomplete generation","error_type":"incomplete_generation"}',
        BROKEN,
        shaped("Incomplete generation", "server_error", "upstream_error"),
    ),
    (
        503,
        b'{"error":"unhealthy","error_type":"healthcheck"}',
        BUSY,
        shaped("unhealthy", "service_unavailable_error", "server_overloaded"),
    ),
    # FastAPI and Triton: detail
    (404, b'{"detail":"Not Found"}', CLIENT, shaped("Not Found", INVALID, "not_found")),
    (405, b'{"detail":"Method Not Allowed"}', CLIENT, shaped("Method Not Allowed", INVALID, "method_not_allowed")),
    (
        404,
        b'{"detail":"Unknown model: llama"}',
        CLIENT,
        shaped("Unknown model: llama", INVALID, "model_not_found", "model"),
    ),
    (
        400,
        b'{"detail":"Prompt length (5056) exceeds maximum input length (2048)"}',
        OVER_LENGTH,
        shaped("Prompt length (5056) exceeds maximum input length (2048)", INVALID, TOO_LONG),
    ),
    (
        422,
        b'{"detail":[{"loc":["body","messages",0],"msg":"field required"},{"msg":"odd"},{"loc":["x"]},7]}',
        CLIENT,
        shaped("body.messages.0: field required; odd", INVALID, None, "body.messages.0"),
    ),
    (400, b'{"detail":{"message":"no"}}', CLIENT, shaped("no", INVALID, None)),
    # no shape at all
    (400, b'{"detail":{"why":1}}', CLIENT, shaped('{"detail":{"why":1}}', INVALID, None)),
    (400, b'{"detail":[]}', CLIENT, shaped('{"detail":[]}', INVALID, None)),
    (500, b"[1]", BROKEN, shaped("[1]", "server_error", "upstream_error")),
    (413, b"Payload Too Large", CLIENT, shaped("Payload Too Large", INVALID, "request_too_large")),
    (502, b" bad gateway \n", BROKEN, shaped("bad gateway", "server_error", "upstream_error")),
    (504, b"stream timeout", BROKEN, shaped("stream timeout", "server_error", "upstream_timeout")),
    (529, b"Overloaded", BUSY, shaped("Overloaded", "service_unavailable_error", "server_overloaded")),
    (
        500,
        b"",
        BROKEN,
        shaped("the engine answered with status 500 and no body", "server_error", "upstream_error"),
    ),
    (
        502,
        b"<html><h1>502 Bad Gateway</h1><hr>nginx</html>",
        BROKEN,
        shaped("the engine answered with status 502 and an HTML page", "server_error", "upstream_error"),
    ),
    (400, b"\xff\xfe{", CLIENT, shaped("\ufffd\ufffd{", INVALID, None)),
]

STREAMED = [
    ({"error": {"message": VLLM_DEAD, "type": "InternalServerError", "param": None, "code": 500}}, 500, BROKEN),
    (
        {
            "error": {
                "object": "error",
                "message": "The request queue is full.",
                "type": "SERVICE_UNAVAILABLE",
                "param": None,
                "code": 503,
            }
        },
        503,
        BUSY,
    ),
    ({"error": {"message": TGI_LENGTHS[0], "http_status_code": 422}}, 422, OVER_LENGTH),
    ({"error": {"message": SGLANG_LENGTH, "type": "BadRequestError", "code": "400"}}, 400, OVER_LENGTH),
    ({"error": {"message": "no", "type": "Service Unavailable"}}, 503, BUSY),
    ({"error": {"message": "no", "code": 200}}, 500, BROKEN),
    ({"error": {}}, 500, BROKEN),
    ({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, 529, BUSY),
    ({"type": "error", "error": {"type": "api_error", "message": "Internal server error"}}, 500, BROKEN),
]
