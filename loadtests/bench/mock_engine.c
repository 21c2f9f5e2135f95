// mock_engine BASEPORT NPORTS [-N chunks] [-t ttft_us] [-i interval_us]
//
// An OpenAI-compatible engine that computes nothing: one thread on epoll, far faster than any proxy before it. It
// answers chat and completions, whole or as a stream of vLLM-shaped chunks, the first after ttft_us, one every
// interval_us (0: as fast as the client takes them). A token's text is "@<CLOCK_MONOTONIC in ns>", so that the load
// client can tell by how much each chunk was delayed. GET /ctl?ttft_us=..&interval_us=..&n=.. sets the pace and
// answers the counters; it knows what routers ask a worker before they use it.
//
// A connection is idle, or STREAMING (its next chunk is due), or WAITING (its whole answer is due); what is due sits
// in a heap by time. Requests that come early wait in the input buffer. A connection closed within a round of events
// is freed after it, since later events of the round may name it.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "mock_replies.h"

#define LISTENERS 64
#define EVENTS 512
#define READ_BYTES 4096  // room to have before each read
#define FLAGS_BYTES 1500 // members besides the messages stand in the first or last bytes of a body

typedef unsigned long long ull;
enum state { IDLE, STREAMING, WAITING };
typedef struct conn {
    int fd, is_listener, closed, close_after, want_out;
    enum state state;
    char *in; // with one spare byte for a NUL
    size_t in_len, in_cap;
    char *out;
    size_t out_len, out_cap, out_at;
    size_t head_len; // of the request being read; 0: not known yet
    long body_len;
    int is_chunked;
    char id[40];
    int at_start, left, made, tells_usage, prompt_tokens; // of the answer under way
    uint64_t due;
    int heap_at; // -1: not in the heap
} conn;

static long long ttft_us, interval_us, default_chunks = 64;
static uint64_t n_requests, n_chunks, n_streams_done, n_active, n_bytes_in, n_conns, next_id;
static int epoll;
static time_t created;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

// ---- what is due, earliest first

static conn **heap;
static int heap_len, heap_cap;

static void heap_swap(int a, int b) {
    conn *t = heap[a];
    heap[a] = heap[b];
    heap[b] = t;
    heap[a]->heap_at = a;
    heap[b]->heap_at = b;
}

static void heap_up(int i) {
    for (; i && heap[(i - 1) / 2]->due > heap[i]->due; i = (i - 1) / 2) heap_swap(i, (i - 1) / 2);
}

static void heap_down(int i) {
    for (;;) {
        int l = 2 * i + 1, least = i;
        if (l < heap_len && heap[l]->due < heap[least]->due) least = l;
        if (l + 1 < heap_len && heap[l + 1]->due < heap[least]->due) least = l + 1;
        if (least == i) return;
        heap_swap(i, least);
        i = least;
    }
}

static void heap_push(conn *c) {
    if (heap_len == heap_cap) {
        heap_cap = heap_cap ? heap_cap * 2 : 256;
        heap = realloc(heap, heap_cap * sizeof *heap);
    }
    heap[heap_len] = c;
    c->heap_at = heap_len;
    heap_up(heap_len++);
}

static void heap_remove(conn *c) {
    int i = c->heap_at;
    if (i < 0) return;
    if (i != --heap_len) {
        heap[i] = heap[heap_len];
        heap[i]->heap_at = i;
        heap_up(i);
        heap_down(heap[i]->heap_at);
    }
    c->heap_at = -1;
}

// ---- connections

static conn **dead;
static int dead_len, dead_cap;

static void watch(conn *c, int op, int want_out) {
    struct epoll_event e = {EPOLLIN | EPOLLRDHUP | (want_out ? EPOLLOUT : 0), {.ptr = c}};
    epoll_ctl(epoll, op, c->fd, &e);
    c->want_out = want_out;
}

static void drop(conn *c) {
    if (c->closed) return;
    c->closed = 1;
    heap_remove(c);
    if (c->state != IDLE) n_active--;
    c->state = IDLE;
    close(c->fd);
    n_conns--;
    if (dead_len == dead_cap) {
        dead_cap = dead_cap ? dead_cap * 2 : 1024;
        dead = realloc(dead, dead_cap * sizeof *dead);
    }
    dead[dead_len++] = c;
}

static void flush(conn *c) {
    while (c->out_at < c->out_len) {
        ssize_t w = send(c->fd, c->out + c->out_at, c->out_len - c->out_at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (w < 0 && errno == EAGAIN) {
            if (!c->want_out) watch(c, EPOLL_CTL_MOD, 1);
            return;
        }
        if (w < 0) {
            drop(c);
            return;
        }
        c->out_at += w;
    }
    c->out_at = c->out_len = 0;
    if (c->want_out) watch(c, EPOLL_CTL_MOD, 0);
}

static void put(conn *c, const char *bytes, size_t n) {
    if (c->out_len + n > c->out_cap) {
        c->out_cap = (c->out_len + n) * 2;
        c->out = realloc(c->out, c->out_cap);
    }
    memcpy(c->out + c->out_len, bytes, n);
    c->out_len += n;
}

static void put_chunk(conn *c, const char *bytes, int n) {
    char size[16];
    put(c, size, snprintf(size, sizeof size, "%x\r\n", n));
    put(c, bytes, n);
    put(c, "\r\n", 2);
}

static void answer(conn *c, const char *type, const char *body, int n) {
    char head[300];
    put(c, head, snprintf(head, sizeof head, WHOLE_HEAD, n, type));
    put(c, body, n);
    flush(c);
}

// ---- generation

static void read_requests(conn *c);

// The answer is out: close, or go on to a request that came early.
static void answered(conn *c) {
    if (c->closed) return;
    if (c->close_after && c->out_len == 0) drop(c);
    else if (c->in_len) read_requests(c);
}

// Send one chunk of a stream, after the first what precedes it, after the last what follows.
static void step(conn *c, uint64_t now) {
    char b[700];
    if (c->at_start) {
        c->at_start = 0;
        put(c, STREAM_HEAD, strlen(STREAM_HEAD));
        put_chunk(c, b, snprintf(b, sizeof b, ROLE_CHUNK, c->id, (long)created));
    }
    if (c->left > 0) {
        c->left--;
        n_chunks++;
        const char *reason = c->left ? "null" : "\"stop\"";
        put_chunk(c, b, snprintf(b, sizeof b, TOKEN_CHUNK, c->id, (long)created, (ull)now_ns(), reason));
    }
    if (c->left == 0) {
        int total = c->prompt_tokens + c->made;
        if (c->tells_usage)
            put_chunk(c, b, snprintf(b, sizeof b, USAGE_CHUNK, c->id, (long)created, c->prompt_tokens, total, c->made));
        put_chunk(c, DONE_CHUNK, strlen(DONE_CHUNK));
        put(c, "0\r\n\r\n", 5);
        n_streams_done++;
        n_active--;
        c->state = IDLE;
        flush(c);
        answered(c);
        return;
    }
    flush(c);
    if (c->closed) return;
    if (interval_us) { // beats missed are left out: made up for, all streams would fall into step
        uint64_t beat = interval_us * 1000ull;
        c->due += beat * (now > c->due ? (now - c->due) / beat + 1 : 1);
    } else c->due = now;
    heap_push(c);
}

static void answer_whole(conn *c) {
    char b[1400];
    int total = c->prompt_tokens + WHOLE_TOKENS;
    int n = snprintf(b, sizeof b, WHOLE_ANSWER, c->id, (long)created, (ull)now_ns(), c->prompt_tokens, total);
    answer(c, "application/json", b, n);
}

// Find a member's value in a part of a body; NULL if it is not there.
static char *member(char *part, size_t n, const char *key) {
    char *p = memmem(part, n, key, strlen(key));
    if (!p) return NULL;
    p += strlen(key);
    while (*p == ' ') p++;
    return p;
}

static void generate(conn *c, char *body, size_t n) {
    int is_stream = 0;
    long limit = -1;
    c->tells_usage = 0;
    size_t part_len = n > FLAGS_BYTES ? FLAGS_BYTES : n;
    char *parts[] = {body, body + n - part_len};
    for (int i = 0; i < (n > FLAGS_BYTES ? 2 : 1); i++) {
        char *p;
        if ((p = member(parts[i], part_len, "\"stream\":")) && *p == 't') is_stream = 1;
        if ((p = member(parts[i], part_len, "\"include_usage\":")) && *p == 't') c->tells_usage = 1;
        if (limit < 0 && (p = member(parts[i], part_len, "\"max_tokens\":"))) limit = strtol(p, NULL, 10);
        if (limit < 0 && (p = member(parts[i], part_len, "\"max_completion_tokens\":"))) limit = strtol(p, NULL, 10);
    }
    snprintf(c->id, sizeof c->id, "chatcmpl-%024llx", (ull)(++next_id * 0x9E3779B97F4A7C15ull));
    c->prompt_tokens = n / 4;
    c->left = c->made = limit > 0 ? limit : default_chunks;
    c->at_start = 1;
    uint64_t now = now_ns();
    c->due = now + ttft_us * 1000;
    if (!is_stream && !ttft_us) {
        answer_whole(c);
        return;
    }
    c->state = is_stream ? STREAMING : WAITING;
    n_active++;
    if (ttft_us) heap_push(c);
    else step(c, now);
}

// ---- requests

static long long argument(const char *query, const char *name, long long otherwise) {
    const char *p = strstr(query, name);
    return p ? atoll(p + strlen(name)) : otherwise;
}

static int starts(const char *path, const char *prefix) { return !strncmp(path, prefix, strlen(prefix)); }

static void handle(conn *c, char *head, size_t head_len, char *body, size_t body_len) {
    n_requests++;
    n_bytes_in += head_len + body_len;
    head[head_len - 1] = 0;
    char *path = strchr(head, ' '), *end = path ? strchr(path + 1, ' ') : NULL;
    if (!end) {
        drop(c);
        return;
    }
    path++;
    *end = 0;
    const char *json = "application/json";
    char b[4096];
    if (starts(path, "/v1/chat/completions") || starts(path, "/v1/completions")) generate(c, body, body_len);
    else if (starts(path, "/ctl")) {
        ttft_us = argument(path, "ttft_us=", ttft_us);
        interval_us = argument(path, "interval_us=", interval_us);
        default_chunks = argument(path, "&n=", default_chunks);
        answer(c, json, b,
               snprintf(b, sizeof b, COUNTERS, (ull)n_requests, (ull)n_chunks, (ull)n_streams_done, (ull)n_active,
                        (ull)n_conns, (ull)n_bytes_in, ttft_us, interval_us));
    } else if (starts(path, "/v1/models")) answer(c, json, b, snprintf(b, sizeof b, MODELS, (long)created));
    else if (starts(path, "/metrics"))
        answer(c, "text/plain; version=0.0.4", b, snprintf(b, sizeof b, METRICS, (ull)n_active));
    else if (starts(path, "/get_server_info") || starts(path, "/server_info"))
        answer(c, json, SERVER_INFO, strlen(SERVER_INFO));
    else if (starts(path, "/get_model_info") || starts(path, "/model_info"))
        answer(c, json, MODEL_INFO, strlen(MODEL_INFO));
    else if (starts(path, "/version")) answer(c, json, VERSION, strlen(VERSION));
    else answer(c, "text/plain", "", 0); // /health, /ping
}

// Read the head of the next request; 0 when it is not all there.
static int read_head(conn *c) {
    char *end = memmem(c->in, c->in_len, "\r\n\r\n", 4);
    if (!end) return 0;
    c->head_len = end - c->in + 4;
    c->body_len = c->is_chunked = c->close_after = 0;
    for (char *line = c->in, *nl; line < end + 2 && (nl = memchr(line, '\n', end + 2 - line)); line = nl + 1) {
        if (!strncasecmp(line, "content-length:", 15)) c->body_len = atol(line + 15);
        else if (!strncasecmp(line, "transfer-encoding:", 18)) c->is_chunked = 1;
        else if (!strncasecmp(line, "connection: close", 17)) c->close_after = 1;
        else if (!strncasecmp(line, "expect:", 7)) {
            put(c, "HTTP/1.1 100 Continue\r\n\r\n", 25);
            flush(c);
        }
    }
    return 1;
}

// Join the chunks of a body in place; 0 when they are not all there, else the request's length as it came.
static size_t join_chunks(conn *c) {
    for (int pass = 0;; pass++) { // the first only sees that all is there
        size_t at = c->head_len, to = c->head_len;
        for (;;) {
            char *nl = memmem(c->in + at, c->in_len - at, "\r\n", 2);
            if (!nl) return 0;
            size_t size = strtoul(c->in + at, NULL, 16), data = nl - c->in + 2;
            if (c->in_len < data + size + 2) return 0;
            if (pass) memmove(c->in + to, c->in + data, size);
            to += size;
            at = data + size + 2;
            if (!size) break;
        }
        if (pass) {
            c->body_len = to - c->head_len;
            return at;
        }
    }
}

static void read_requests(conn *c) {
    while (!c->closed && c->state == IDLE && c->in_len) {
        if (!c->head_len && !read_head(c)) return;
        size_t head = c->head_len, all = c->is_chunked ? join_chunks(c) : head + c->body_len;
        if (!all || c->in_len < all) return;
        c->head_len = 0;
        char after = c->in[all];
        c->in[all] = 0; // strtol stops here
        handle(c, c->in, head, c->in + head, c->body_len);
        if (c->closed) return;
        c->in[all] = after;
        memmove(c->in, c->in + all, c->in_len - all);
        c->in_len -= all;
        if (c->close_after && c->state == IDLE && c->out_len == 0) drop(c);
    }
}

// ---- the loop

static void accept_all(conn *listener) {
    for (int fd; (fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK)) >= 0;) {
        int one = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        conn *c = calloc(1, sizeof *c);
        c->fd = fd;
        c->heap_at = -1;
        c->in_cap = READ_BYTES;
        c->in = malloc(c->in_cap + 1);
        n_conns++;
        watch(c, EPOLL_CTL_ADD, 0);
    }
}

static void receive(conn *c) {
    for (;;) {
        if (c->in_cap - c->in_len < READ_BYTES) {
            c->in_cap = c->in_cap * 2 + 65536;
            c->in = realloc(c->in, c->in_cap + 1);
        }
        size_t room = c->in_cap - c->in_len;
        ssize_t r = recv(c->fd, c->in + c->in_len, room, MSG_DONTWAIT);
        if (r == 0 || (r < 0 && errno != EAGAIN)) {
            drop(c);
            return;
        }
        if (r > 0) c->in_len += r;
        if (r < (ssize_t)room) break;
    }
    read_requests(c);
}

static void event(conn *c, uint32_t what) {
    if (c->is_listener) {
        accept_all(c);
        return;
    }
    if (!c->closed && what & EPOLLOUT) flush(c);
    if (c->closed) return;
    if (what & EPOLLIN) receive(c);
    else if (what & (EPOLLHUP | EPOLLERR | EPOLLRDHUP)) drop(c);
}

// Send what is due now; what becomes due meanwhile waits for the next round.
static void send_due(void) {
    uint64_t now = now_ns();
    for (int round = heap_len; round-- > 0 && heap_len && heap[0]->due <= now;) {
        conn *c = heap[0];
        heap_remove(c);
        if (c->state == STREAMING) step(c, now);
        else {
            c->state = IDLE;
            n_active--;
            answer_whole(c);
            answered(c);
        }
    }
}

static int listen_on(conn *c, int port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int one = 1;
    c->is_listener = 1;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(c->fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(c->fd, (void *)&at, sizeof at) || listen(c->fd, 4096)) {
        perror("listen");
        return -1;
    }
    struct epoll_event e = {EPOLLIN, {.ptr = c}};
    return epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &e);
}

int main(int argc, char **argv) {
    static conn listeners[LISTENERS];
    int base = argc > 1 ? atoi(argv[1]) : 0, ports = argc > 2 ? atoi(argv[2]) : 0;
    if (base <= 0 || ports <= 0 || ports > LISTENERS) {
        fprintf(stderr, "usage: mock_engine BASEPORT NPORTS [-N chunks] [-t ttft_us] [-i interval_us]\n");
        return 2;
    }
    for (int i = 3; i + 1 < argc; i += 2) {
        if (argv[i][1] == 'N') default_chunks = atoll(argv[i + 1]);
        if (argv[i][1] == 't') ttft_us = atoll(argv[i + 1]);
        if (argv[i][1] == 'i') interval_us = atoll(argv[i + 1]);
    }
    signal(SIGPIPE, SIG_IGN);
    created = time(NULL);
    epoll = epoll_create1(0);
    for (int i = 0; i < ports; i++)
        if (listen_on(&listeners[i], base + i)) return 1;
    for (;;) {
        struct timespec wait = {0, 0};
        uint64_t now = now_ns();
        if (heap_len && heap[0]->due > now) {
            wait.tv_sec = (heap[0]->due - now) / 1000000000;
            wait.tv_nsec = (heap[0]->due - now) % 1000000000;
        }
        struct epoll_event events[EVENTS];
        int n = epoll_pwait2(epoll, events, EVENTS, heap_len ? &wait : NULL, NULL);
        if (n < 0 && errno != EINTR) {
            perror("epoll");
            return 1;
        }
        for (int i = 0; i < n; i++) event(events[i].data.ptr, events[i].events);
        send_due();
        while (dead_len) {
            conn *c = dead[--dead_len];
            free(c->in);
            free(c->out);
            free(c);
        }
    }
}
