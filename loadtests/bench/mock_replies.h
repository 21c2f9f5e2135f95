// What mock_engine says: vLLM's shapes, as printf formats. M is the model's name, all else is marked.
#define M "Qwen/Qwen2.5-7B-Instruct"
#define HEAD "HTTP/1.1 200 OK\r\ndate: Mon, 01 Jan 2024 00:00:00 GMT\r\nserver: uvicorn\r\n"

// content-length, content-type
static const char WHOLE_HEAD[] = HEAD "content-length: %d\r\ncontent-type: %s\r\n\r\n";
static const char STREAM_HEAD[] =
    HEAD "content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";

// id, created
#define CHUNK "data: {\"id\":\"%s\",\"object\":\"chat.completion.chunk\",\"created\":%ld,\"model\":\"" M "\","
static const char ROLE_CHUNK[] =
    CHUNK "\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
          "\"logprobs\":null,\"finish_reason\":null}]}\n\n";
// ... then the time it was made, finish_reason
static const char TOKEN_CHUNK[] = CHUNK
    "\"choices\":[{\"index\":0,\"delta\":{\"content\":\"@%llu\"},\"logprobs\":null,\"finish_reason\":%s}]}\n\n";
// ... then prompt, total and completion tokens
static const char USAGE_CHUNK[] =
    CHUNK "\"choices\":[],\"usage\":{\"prompt_tokens\":%d,\"total_tokens\":%d,\"completion_tokens\":%d}}\n\n";
static const char DONE_CHUNK[] = "data: [DONE]\n\n";

// id, created, the time it was made, prompt tokens, total tokens
#define WHOLE_TOKENS 64
static const char WHOLE_ANSWER[] =
    "{\"id\":\"%s\",\"object\":\"chat.completion\",\"created\":%ld,\"model\":\"" M "\","
    "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"@%llu The quick brown fox "
    "jumps over the lazy dog while the five boxing wizards jump quickly; this is a short answer of about sixty "
    "tokens that an engine might give to a question about the weather, the price of fish, or the shortest path "
    "through a maze of twisty little passages.\",\"refusal\":null,\"annotations\":null,\"audio\":null,"
    "\"function_call\":null,\"tool_calls\":[],\"reasoning_content\":null},\"logprobs\":null,"
    "\"finish_reason\":\"stop\",\"stop_reason\":null}],\"usage\":{\"prompt_tokens\":%d,\"total_tokens\":%d,"
    "\"completion_tokens\":64,\"prompt_tokens_details\":null},\"prompt_logprobs\":null}";

// requests, chunks, streams done, requests active, connections, bytes in, ttft_us, interval_us
static const char COUNTERS[] =
    "{\"req\":%llu,\"chunks\":%llu,\"streams_done\":%llu,\"active\":%llu,\"conns\":%llu,\"bytes_in\":%llu,"
    "\"ttft_us\":%lld,\"interval_us\":%lld}";
// created
static const char MODELS[] =
    "{\"object\":\"list\",\"data\":[{\"id\":\"" M "\",\"object\":\"model\",\"created\":%ld,\"owned_by\":\"vllm\","
    "\"root\":\"" M "\",\"parent\":null,\"max_model_len\":131072,\"permission\":[]}]}";
// requests active
static const char METRICS[] =
    "# HELP vllm:num_requests_running Number of requests in model execution batches.\n"
    "# TYPE vllm:num_requests_running gauge\n"
    "vllm:num_requests_running{engine=\"0\",model_name=\"" M "\"} %llu\n"
    "# TYPE vllm:num_requests_waiting gauge\n"
    "vllm:num_requests_waiting{engine=\"0\",model_name=\"" M "\"} 0\n"
    "# TYPE vllm:kv_cache_usage_perc gauge\n"
    "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"" M "\"} 0.1\n";
static const char VERSION[] = "{\"version\":\"0.11.0\"}";
// what sglang-router asks a worker before it uses it
static const char SERVER_INFO[] =
    "{\"model_path\":\"" M "\",\"served_model_name\":\"" M "\",\"tokenizer_path\":\"" M "\",\"tp_size\":1,"
    "\"dp_size\":1,\"version\":\"0.5.0\",\"max_total_num_tokens\":100000,\"internal_states\":[{}]}";
static const char MODEL_INFO[] = "{\"model_path\":\"" M "\",\"tokenizer_path\":\"" M "\",\"is_generation\":true,"
                                 "\"served_model_name\":\"" M "\"}";
