// mock_engine: single-thread epoll mock of a vLLM/SGLang OpenAI server.
// usage: mock_engine BASEPORT NPORTS [-N default_chunks] [-t ttft_us] [-i interval_us]
// control: GET /ctl?ttft_us=..&interval_us=..&n=..   (answers JSON counters)
// Each delta's content is "@<CLOCK_MONOTONIC ns>" so that the client can measure the delay added to each
// chunk.
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
typedef struct conn {
    int fd, port;
    char *in;
    size_t len, cap;
    size_t scan;
    char *out;
    size_t olen, ocap, ooff;
    int streaming, left, first, usage, gen;
    uint64_t next;
    int heap_idx;
    int want_out;
    int pending;
    char id[40];
    int rr_idx;
    int closed;
    int conn_close;
    size_t hdr_end;
    long clen;
    int chunked;
    int prompt_tokens;
} conn;
static long long ttft_us = 0, interval_us = 0, defn = 64;
static uint64_t n_req, n_chunks, n_streams_done, n_active, n_bytes_in, n_conns;
static int ep;
static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}
// heap of timed conns
static conn **heap;
static int hn, hc;
static void hswap(int a, int b) {
    conn *t = heap[a];
    heap[a] = heap[b];
    heap[b] = t;
    heap[a]->heap_idx = a;
    heap[b]->heap_idx = b;
}
static void hup(int i) {
    while (i && heap[(i - 1) / 2]->next > heap[i]->next) {
        hswap(i, (i - 1) / 2);
        i = (i - 1) / 2;
    }
}
static void hdown(int i) {
    for (;;) {
        int l = 2 * i + 1, m = i;
        if (l < hn && heap[l]->next < heap[m]->next) m = l;
        if (l + 1 < hn && heap[l + 1]->next < heap[m]->next) m = l + 1;
        if (m == i) return;
        hswap(i, m);
        i = m;
    }
}
static void hpush(conn *c) {
    if (hn == hc) {
        hc = hc ? hc * 2 : 256;
        heap = realloc(heap, hc * sizeof *heap);
    }
    heap[hn] = c;
    c->heap_idx = hn;
    hup(hn++);
}
static void hremove(conn *c) {
    int i = c->heap_idx;
    if (i < 0) return;
    hn--;
    if (i != hn) {
        heap[i] = heap[hn];
        heap[i]->heap_idx = i;
        hup(i);
        hdown(heap[i]->heap_idx);
    }
    c->heap_idx = -1;
}
static conn *tofree[65536];
static int ntofree;
static void conn_close_(conn *c) {
    if (c->closed) return;
    c->closed = 1;
    hremove(c);
    if (c->streaming) {
        n_active--;
        c->streaming = 0;
    }
    close(c->fd);
    n_conns--;
    if (ntofree < 65536) tofree[ntofree++] = c;
}
static void out_flush(conn *c) {
    while (c->ooff < c->olen) {
        ssize_t w = send(c->fd, c->out + c->ooff, c->olen - c->ooff, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (w < 0) {
            if (errno == EAGAIN) {
                if (!c->want_out) {
                    struct epoll_event e = {EPOLLIN | EPOLLOUT | EPOLLRDHUP, {.ptr = c}};
                    epoll_ctl(ep, EPOLL_CTL_MOD, c->fd, &e);
                    c->want_out = 1;
                }
                return;
            }
            conn_close_(c);
            return;
        }
        c->ooff += w;
    }
    c->ooff = c->olen = 0;
    if (c->want_out) {
        struct epoll_event e = {EPOLLIN | EPOLLRDHUP, {.ptr = c}};
        epoll_ctl(ep, EPOLL_CTL_MOD, c->fd, &e);
        c->want_out = 0;
    }
}
static void out_add(conn *c, const char *b, size_t n) {
    if (c->olen + n > c->ocap) {
        c->ocap = (c->olen + n) * 2;
        c->out = realloc(c->out, c->ocap);
    }
    memcpy(c->out + c->olen, b, n);
    c->olen += n;
}
static void chunk(conn *c, const char *p, int n) {
    char h[16];
    int hn_ = snprintf(h, 16, "%x\r\n", n);
    out_add(c, h, hn_);
    out_add(c, p, n);
    out_add(c, "\r\n", 2);
}
static time_t created;
static const char *MODEL = "Qwen/Qwen2.5-7B-Instruct";
static void process(conn *c);
static void step(conn *c, uint64_t now) { // emit one chunk
    char b[700];
    int n;
    if (c->first) {
        c->first = 0;
        const char *h =
            "HTTP/1.1 200 OK\r\ndate: Mon, 01 Jan 2024 00:00:00 GMT\r\nserver: uvicorn\r\ncontent-type: "
            "text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
        out_add(c, h, strlen(h));
        n = snprintf(b, sizeof b,
                     "data: "
                     "{\"id\":\"%s\",\"object\":\"chat.completion.chunk\",\"created\":%ld,\"model\":\"%s\","
                     "\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                     "\"logprobs\":null,\"finish_reason\":null}]}\n\n",
                     c->id, (long)created, MODEL);
        chunk(c, b, n);
    }
    if (c->left > 0) {
        c->left--;
        n_chunks++;
        n = snprintf(b, sizeof b,
                     "data: "
                     "{\"id\":\"%s\",\"object\":\"chat.completion.chunk\",\"created\":%ld,\"model\":\"%s\","
                     "\"choices\":[{\"index\":0,\"delta\":{\"content\":\"@%llu\"},\"logprobs\":null,\"finish_"
                     "reason\":%s}]}\n\n",
                     c->id, (long)created, MODEL, (unsigned long long)now_ns(),
                     c->left ? "null" : "\"stop\"");
        chunk(c, b, n);
    }
    if (c->left == 0) {
        if (c->usage) {
            n = snprintf(b, sizeof b,
                         "data: "
                         "{\"id\":\"%s\",\"object\":\"chat.completion.chunk\",\"created\":%ld,\"model\":\"%"
                         "s\",\"choices\":[],\"usage\":{\"prompt_tokens\":%d,\"total_tokens\":%d,"
                         "\"completion_tokens\":%d}}\n\n",
                         c->id, (long)created, MODEL, c->prompt_tokens, c->prompt_tokens + c->gen, c->gen);
            chunk(c, b, n);
        }
        chunk(c, "data: [DONE]\n\n", 14);
        out_add(c, "0\r\n\r\n", 5);
        n_streams_done++;
        n_active--;
        c->streaming = 0;
        out_flush(c);
        if (!c->closed && c->conn_close && c->olen == 0) {
            conn_close_(c);
            return;
        }
        if (!c->closed && c->len) process(c);
        return;
    }
    out_flush(c);
    if (c->closed) return;
    if (interval_us) {
        c->next += (uint64_t)interval_us * 1000;
        if (c->next < now) c->next = now;
    } else c->next = now;
    hpush(c);
}
static void simple(conn *c, const char *ct, const char *body, int blen) {
    char h[300];
    int n = snprintf(h, 300,
                     "HTTP/1.1 200 OK\r\ndate: Mon, 01 Jan 2024 00:00:00 GMT\r\nserver: "
                     "uvicorn\r\ncontent-length: %d\r\ncontent-type: %s\r\n\r\n",
                     blen, ct);
    out_add(c, h, n);
    out_add(c, body, blen);
    out_flush(c);
}
static uint64_t idc;
static long long qarg(const char *q, const char *k, long long d) {
    const char *p = strstr(q, k);
    if (!p) return d;
    return atoll(p + strlen(k));
}
static void reply_ns(conn *c) {
    char b[1400];
    int n = snprintf(
        b, sizeof b,
        "{\"id\":\"%s\",\"object\":\"chat.completion\",\"created\":%ld,\"model\":\"%s\",\"choices\":[{"
        "\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"@%llu The quick brown fox jumps over "
        "the lazy dog while the five boxing wizards jump quickly; this is a short answer of about sixty "
        "tokens that an engine might give to a question about the weather, the price of fish, or the "
        "shortest path through a maze of twisty little "
        "passages.\",\"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null,\"tool_"
        "calls\":[],\"reasoning_content\":null},\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":"
        "null}],\"usage\":{\"prompt_tokens\":%d,\"total_tokens\":%d,\"completion_tokens\":64,\"prompt_tokens_"
        "details\":null},\"prompt_logprobs\":null}",
        c->id, (long)created, MODEL, (unsigned long long)now_ns(), c->prompt_tokens, c->prompt_tokens + 64);
    simple(c, "application/json", b, n);
}
static void handle(conn *c, char *h, size_t hl, char *body, size_t bl) {
    n_req++;
    n_bytes_in += hl + bl;
    char save = h[hl - 1];
    h[hl - 1] = 0;
    char *sp = strchr(h, ' ');
    if (!sp) {
        conn_close_(c);
        return;
    }
    char *path = sp + 1;
    char *e = strchr(path, ' ');
    if (!e) {
        conn_close_(c);
        return;
    }
    *e = 0;
    char b[4096];
    int n;
    if (!strncmp(path, "/v1/chat/completions", 20) || !strncmp(path, "/v1/completions", 15) ||
        !strncmp(path, "/generate", 9)) {
        // flags are looked for in the first and last 1500 bytes of the body only (JSON keys outside messages)
        int stream = 0;
        long mt = -1;
        int usage = 0;
        size_t w = 1500;
        for (int k = 0; k < 2; k++) {
            char *s = k ? (bl > w ? body + bl - w : body) : body;
            size_t l = k ? (bl > w ? w : bl) : (bl > w ? w : bl);
            if (k && bl <= w) break;
            char *p = memmem(s, l, "\"stream\":", 9);
            if (p) {
                p += 9;
                while (*p == ' ') p++;
                if (*p == 't') stream = 1;
            }
            p = memmem(s, l, "\"max_tokens\":", 13);
            if (p && mt < 0) {
                p += 13;
                while (*p == ' ') p++;
                if (*p >= '0' && *p <= '9') mt = strtol(p, 0, 10);
            }
            p = memmem(s, l, "\"max_completion_tokens\":", 24);
            if (p && mt < 0) {
                p += 24;
                while (*p == ' ') p++;
                if (*p >= '0' && *p <= '9') mt = strtol(p, 0, 10);
            }
            p = memmem(s, l, "\"include_usage\":", 16);
            if (p) {
                p += 16;
                while (*p == ' ') p++;
                if (*p == 't') usage = 1;
            }
        }
        snprintf(c->id, sizeof c->id, "chatcmpl-%024llx",
                 (unsigned long long)(++idc * 0x9E3779B97F4A7C15ull));
        c->prompt_tokens = bl / 4;
        uint64_t t = now_ns();
        if (stream) {
            c->streaming = 1;
            n_active++;
            c->left = c->gen = mt > 0 ? mt : defn;
            c->first = 1;
            c->usage = usage;
            c->next = t + ttft_us * 1000ull;
            if (ttft_us == 0) step(c, t);
            else hpush(c);
        } else {
            if (ttft_us) {
                c->streaming = 2;
                n_active++;
                c->next = t + ttft_us * 1000ull;
                hpush(c);
            } else reply_ns(c);
        }
    } else if (!strncmp(path, "/ctl", 4)) {
        ttft_us = qarg(path, "ttft_us=", ttft_us);
        interval_us = qarg(path, "interval_us=", interval_us);
        defn = qarg(path, "&n=", defn);
        n = snprintf(b, sizeof b,
                     "{\"req\":%llu,\"chunks\":%llu,\"streams_done\":%llu,\"active\":%llu,\"conns\":%llu,"
                     "\"bytes_in\":%llu,\"ttft_us\":%lld,\"interval_us\":%lld,\"t\":%llu}",
                     (unsigned long long)n_req, (unsigned long long)n_chunks,
                     (unsigned long long)n_streams_done, (unsigned long long)n_active,
                     (unsigned long long)n_conns, (unsigned long long)n_bytes_in, ttft_us, interval_us,
                     (unsigned long long)now_ns());
        simple(c, "application/json", b, n);
    } else if (!strncmp(path, "/v1/models", 10)) {
        n = snprintf(
            b, sizeof b,
            "{\"object\":\"list\",\"data\":[{\"id\":\"%s\",\"object\":\"model\",\"created\":%ld,\"owned_by\":"
            "\"vllm\",\"root\":\"%s\",\"parent\":null,\"max_model_len\":131072,\"permission\":[]}]}",
            MODEL, (long)created, MODEL);
        simple(c, "application/json", b, n);
    } else if (!strncmp(path, "/get_server_info", 16) || !strncmp(path, "/server_info", 12)) {
        n = snprintf(
            b, sizeof b,
            "{\"model_path\":\"%s\",\"served_model_name\":\"%s\",\"tokenizer_path\":\"%s\",\"tp_size\":1,"
            "\"dp_size\":1,\"version\":\"0.5.0\",\"max_total_num_tokens\":100000,\"internal_states\":[{}]}",
            MODEL, MODEL, MODEL);
        simple(c, "application/json", b, n);
    } else if (!strncmp(path, "/get_model_info", 15) || !strncmp(path, "/model_info", 11)) {
        n = snprintf(b, sizeof b,
                     "{\"model_path\":\"%s\",\"tokenizer_path\":\"%s\",\"is_generation\":true,\"served_model_"
                     "name\":\"%s\"}",
                     MODEL, MODEL, MODEL);
        simple(c, "application/json", b, n);
    } else if (!strncmp(path, "/metrics", 8)) {
        n = snprintf(
            b, sizeof b,
            "# HELP vllm:num_requests_running Number of requests in model execution batches.\n# TYPE "
            "vllm:num_requests_running gauge\nvllm:num_requests_running{engine=\"0\",model_name=\"%s\"} "
            "%llu\n# TYPE vllm:num_requests_waiting "
            "gauge\nvllm:num_requests_waiting{engine=\"0\",model_name=\"%s\"} 0\n# TYPE "
            "vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc{engine=\"0\",model_name=\"%s\"} 0.1\n",
            MODEL, (unsigned long long)n_active, MODEL, MODEL);
        simple(c, "text/plain; version=0.0.4", b, n);
    } else if (!strncmp(path, "/version", 8)) simple(c, "application/json", "{\"version\":\"0.11.0\"}", 20);
    else simple(c, "text/plain", "", 0); // /health, /ping ...
    (void)save;
    (void)n;
}
static void process(conn *c) {
    while (!c->closed && !c->streaming && c->len) {
        if (!c->hdr_end) {
            char *p = memmem(c->in, c->len, "\r\n\r\n", 4);
            if (!p) return;
            c->hdr_end = p - c->in + 4;
            c->clen = 0;
            c->chunked = 0;
            c->conn_close = 0;
            char *h = c->in, *end = p + 2;
            while (h < end) {
                char *nl = memchr(h, '\n', end - h);
                if (!nl) break;
                if (!strncasecmp(h, "content-length:", 15)) c->clen = atol(h + 15);
                else if (!strncasecmp(h, "transfer-encoding:", 18)) c->chunked = 1;
                else if (!strncasecmp(h, "connection: close", 17)) c->conn_close = 1;
                else if (!strncasecmp(h, "expect:", 7)) {
                    out_add(c, "HTTP/1.1 100 Continue\r\n\r\n", 25);
                    out_flush(c);
                }
                h = nl + 1;
            }
        }
        if (!c->chunked) {
            if (c->len < c->hdr_end + c->clen) return;
            size_t tot = c->hdr_end + c->clen;
            size_t he = c->hdr_end;
            c->hdr_end = 0;
            // ensure NUL after body for strtol safety (buffer has 1 spare byte)
            char sv = c->in[tot];
            c->in[tot] = 0;
            char *in = c->in;
            handle(c, in, he, in + he, c->clen);
            if (c->closed) return;
            c->in[tot] = sv;
            memmove(c->in, c->in + tot, c->len - tot);
            c->len -= tot;
            if (c->conn_close && !c->streaming && c->olen == 0) {
                conn_close_(c);
                return;
            }
        } else { // decode chunked request body in place
            size_t p = c->hdr_end, w = c->hdr_end;
            int done = 0;
            // first check completeness
            size_t q = p;
            for (;;) {
                char *nl = memmem(c->in + q, c->len - q, "\r\n", 2);
                if (!nl) return;
                long sz = strtol(c->in + q, 0, 16);
                size_t ds = nl - c->in + 2;
                if (c->len < ds + sz + 2) return;
                q = ds + sz + 2;
                if (sz == 0) break;
            }
            for (;;) {
                char *nl = memmem(c->in + p, c->len - p, "\r\n", 2);
                long sz = strtol(c->in + p, 0, 16);
                size_t ds = nl - c->in + 2;
                if (sz == 0) {
                    p = ds + 2;
                    break;
                }
                memmove(c->in + w, c->in + ds, sz);
                w += sz;
                p = ds + sz + 2;
            }
            (void)done;
            size_t he = c->hdr_end;
            c->hdr_end = 0;
            handle(c, c->in, he, c->in + he, w - he);
            if (c->closed) return;
            memmove(c->in, c->in + p, c->len - p);
            c->len -= p;
        }
    }
}
int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN);
    setvbuf(stdout, 0, _IONBF, 0);
    int base = atoi(argv[1]), np = atoi(argv[2]);
    for (int i = 3; i + 1 < argc; i += 2) {
        if (argv[i][1] == 'N') defn = atoll(argv[i + 1]);
        if (argv[i][1] == 't') ttft_us = atoll(argv[i + 1]);
        if (argv[i][1] == 'i') interval_us = atoll(argv[i + 1]);
    }
    created = time(0);
    ep = epoll_create1(0);
    static conn L[64];
    for (int i = 0; i < np; i++) {
        int s = socket(AF_INET, SOCK_STREAM, 0);
        int one = 1;
        setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, 4);
        struct sockaddr_in a = {AF_INET, htons(base + i), {htonl(INADDR_LOOPBACK)}};
        if (bind(s, (void *)&a, sizeof a)) {
            perror("bind");
            return 1;
        }
        listen(s, 4096);
        fcntl(s, F_SETFL, O_NONBLOCK);
        L[i].fd = s;
        L[i].port = -1;
        struct epoll_event e = {EPOLLIN, {.ptr = &L[i]}};
        epoll_ctl(ep, EPOLL_CTL_ADD, s, &e);
    }
    struct epoll_event ev[512];
    for (;;) {
        struct timespec ts, *tp = 0;
        if (hn) {
            uint64_t n = now_ns();
            int64_t d = heap[0]->next - n;
            if (heap[0]->next <= n) d = 0;
            ts.tv_sec = d / 1000000000;
            ts.tv_nsec = d % 1000000000;
            tp = &ts;
        }
        int n = epoll_pwait2(ep, ev, 512, tp, 0);
        if (n < 0 && errno != EINTR) {
            perror("epoll");
            return 1;
        }
        for (int i = 0; i < n; i++) {
            conn *c = ev[i].data.ptr;
            if (c->port == -1) {
                for (int k = 0; k < 256; k++) {
                    int f = accept4(c->fd, 0, 0, SOCK_NONBLOCK);
                    if (f < 0) break;
                    int one = 1;
                    setsockopt(f, IPPROTO_TCP, TCP_NODELAY, &one, 4);
                    conn *x = calloc(1, sizeof *x);
                    x->fd = f;
                    x->heap_idx = -1;
                    x->cap = 4096;
                    x->in = malloc(x->cap + 1);
                    n_conns++;
                    struct epoll_event e = {EPOLLIN | EPOLLRDHUP, {.ptr = x}};
                    epoll_ctl(ep, EPOLL_CTL_ADD, f, &e);
                }
                continue;
            }
            if (c->closed) continue;
            if (ev[i].events & EPOLLOUT) {
                out_flush(c);
                if (c->closed) continue;
            }
            if (ev[i].events & EPOLLIN) {
                int eof = 0;
                for (;;) {
                    if (c->cap - c->len < 4096) {
                        c->cap = c->cap * 2 + 65536;
                        c->in = realloc(c->in, c->cap + 1);
                    }
                    size_t room = c->cap - c->len;
                    ssize_t r = recv(c->fd, c->in + c->len, room, MSG_DONTWAIT);
                    if (r == 0) {
                        eof = 1;
                        break;
                    }
                    if (r < 0) {
                        if (errno != EAGAIN) eof = 1;
                        break;
                    }
                    c->len += r;
                    if ((size_t)r < room) break;
                }
                if (eof) {
                    conn_close_(c);
                    continue;
                }
                process(c);
            } else if (ev[i].events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP)) conn_close_(c);
        }
        if (hn) {
            uint64_t t = now_ns();
            int lim = hn;
            while (hn && lim-- > 0 && heap[0]->next <= t) {
                conn *c = heap[0];
                hremove(c);
                if (c->streaming == 2) {
                    c->streaming = 0;
                    n_active--;
                    reply_ns(c);
                    if (!c->closed && c->len) process(c);
                } else step(c, t);
            }
        }
        for (int i = 0; i < ntofree; i++) {
            free(tofree[i]->in);
            free(tofree[i]->out);
            free(tofree[i]);
        }
        ntofree = 0;
    }
}
