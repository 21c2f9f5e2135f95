// loadgen -p PORT -b BODYFILE [-c connections] [-d seconds] [-r rate] [-w warm seconds] [-S stagger seconds]
//         [-P path] [-H 'Name: value']...
//
// An HTTP/1.1 load client that knows SSE: one thread on epoll. Without -r a closed loop: each connection sends its
// next request when the last is answered. With -r an open loop: arrivals are Poisson at that rate, wait for a free
// connection if need be, and are timed from when they should have been sent. Only what ends within the window, after
// the warm-up, counts. The 16 bytes UUUUUUUUUUUUUUUU in the body become a counter. A stream is good when it ends in
// [DONE]; "@<CLOCK_MONOTONIC in ns>" in its text, as mock_engine writes it, tells by how much the chunk was delayed.
// Prints one line of JSON; times are in microseconds.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
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
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define EVENTS 512
#define TAIL_BYTES 32             // kept of a body, to see how it ended
#define COUNTER_BYTES 16
#define STAMP_LEAST 1000000000ull // an "@number" below it is text, not a time
#define GRACE_NS 3000000000ull    // for answers under way when the window ends; streams are left at once
#define TICK_NS 100000000
#define END_TICK_NS 10000000

enum part { SIZE, DATA, DATA_END, TRAILER }; // of a chunked body
typedef struct conn {
    int fd, is_busy, want_out, close_after;
    char *body; // own copy: it has its own counter
    size_t sent;
    uint64_t start_at, asked_at, first_at;
    char head[8192];
    int head_len, in_body, status, is_chunked;
    long body_len, body_got; // body_len -1: until the connection closes
    enum part part;
    long chunk_left;
    int seen; // SIZE: 1 in the digits, 2 after them; TRAILER: 1 within a line
    uint64_t stamp;
    int in_stamp;
    char tail[TAIL_BYTES];
    int tail_len;
} conn;

typedef struct {
    float *at;
    long n, cap;
} series;

static int epoll, port, n_conns = 1, is_stream, is_stopping;
static double seconds = 5, rate, warm_s = 0.5, stagger_s;
static char head[12288], *body;
static size_t head_len, body_len, counter_at;
static int has_counter;
static uint64_t counter, window_from, window_to;
static series latency, ttft, delay;
static long n_done, n_all, n_chunks, n_errors, n_bad_status, n_broken, n_unfinished;
static int last_bad_status;
static uint64_t bytes_in;
static conn *conns, **idle; // idle ones and arrivals that wait for one: of the open loop only
static int n_idle;
static uint64_t *waiting;
static long wait_from, wait_to, wait_cap = 1 << 22;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

// ---- figures

static void add(series *s, double value) {
    if (s->n == s->cap) {
        s->cap = s->cap ? s->cap * 2 : 65536;
        s->at = realloc(s->at, s->cap * sizeof *s->at);
    }
    s->at[s->n++] = value;
}

static int by_value(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

static void sort(series *s) {
    if (s->n) qsort(s->at, s->n, sizeof *s->at, by_value);
}

static double quantile(const series *s, double q) { return s->n ? s->at[(long)(q * (s->n - 1) + 0.5)] : 0; }

static int in_window(uint64_t t) { return t >= window_from && t <= window_to; }

static void report(void) {
    sort(&latency);
    sort(&ttft);
    sort(&delay);
    printf("{\"n\":%ld,\"all\":%ld,\"rps\":%.1f,", n_done, n_all, n_done / seconds);
    printf("\"errors\":%ld,\"err_status\":%ld,\"last_bad_status\":%d,\"err_conn\":%ld,\"err_nodone\":%ld,", n_errors,
           n_bad_status, last_bad_status, n_broken, n_unfinished);
    printf("\"lat_p50\":%.1f,\"lat_p90\":%.1f,\"lat_p99\":%.1f,\"lat_max\":%.1f,", quantile(&latency, .5),
           quantile(&latency, .9), quantile(&latency, .99), quantile(&latency, 1));
    printf("\"ttft_p50\":%.1f,\"ttft_p99\":%.1f,", quantile(&ttft, .5), quantile(&ttft, .99));
    printf("\"chunks\":%ld,\"all_chunks\":%ld,\"cps\":%.1f,", delay.n, n_chunks, delay.n / seconds);
    printf("\"cd_p50\":%.1f,\"cd_p99\":%.1f,\"cd_max\":%.1f,", quantile(&delay, .5), quantile(&delay, .99),
           quantile(&delay, 1));
    printf("\"mb_in\":%.2f,\"backlog\":%ld}\n", bytes_in / 1e6, wait_to - wait_from);
}

// ---- sending

static int dial(conn *c) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int one = 1;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(c->fd, (void *)&to, sizeof to) && errno != EINPROGRESS) {
        close(c->fd);
        c->fd = -1;
        return -1;
    }
    struct epoll_event e = {EPOLLIN, {.ptr = c}};
    c->want_out = 0;
    return epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &e);
}

static void hang_up(conn *c) {
    close(c->fd);
    c->fd = -1;
}

static void want_out(conn *c, int wants) {
    struct epoll_event e = {EPOLLIN | (wants ? EPOLLOUT : 0), {.ptr = c}};
    if (c->want_out != wants) epoll_ctl(epoll, EPOLL_CTL_MOD, c->fd, &e);
    c->want_out = wants;
}

// Send what is left of the request; errors show when its answer is read.
static void pump(conn *c) {
    while (c->sent < head_len + body_len) {
        size_t in_body = c->sent > head_len ? c->sent - head_len : 0, in_head = c->sent - in_body;
        struct iovec parts[] = {{head + in_head, head_len - in_head}, {c->body + in_body, body_len - in_body}};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
        ssize_t w = sendmsg(c->fd, &message, MSG_NOSIGNAL);
        if (w < 0) {
            if (errno == EAGAIN || errno == ENOTCONN) want_out(c, 1);
            return;
        }
        c->sent += w;
    }
    want_out(c, 0);
}

static void begin(conn *c, uint64_t asked_at) {
    if (c->fd < 0 && dial(c)) {
        n_errors++;
        n_broken++;
        return;
    }
    c->is_busy = 1;
    c->asked_at = asked_at;
    c->first_at = c->sent = 0;
    c->head_len = c->in_body = c->in_stamp = c->tail_len = 0;
    if (has_counter) {
        char digits[24]; // of other processes' too: one prompt is never sent twice
        unsigned long long unique = (++counter * 7919 + getpid() % 1000 * 100000000ull) % 10000000000000000ull;
        snprintf(digits, sizeof digits, "%0*llu", COUNTER_BYTES, unique);
        memcpy(c->body + counter_at, digits, COUNTER_BYTES);
    }
    pump(c);
}

// ---- reading

static void keep_tail(conn *c, const char *bytes, size_t n) {
    size_t fresh = n < TAIL_BYTES ? n : TAIL_BYTES, room = TAIL_BYTES - fresh;
    size_t old = (size_t)c->tail_len < room ? (size_t)c->tail_len : room;
    memmove(c->tail, c->tail + c->tail_len - old, old);
    memcpy(c->tail + old, bytes + n - fresh, fresh);
    c->tail_len = old + fresh;
}

// Take bytes of a body; a time in them may be cut anywhere.
static void take(conn *c, const char *bytes, size_t n, uint64_t now) {
    const char *end = bytes + n;
    bytes_in += n;
    keep_tail(c, bytes, n);
    for (const char *p = bytes; p < end;) {
        if (!c->in_stamp) {
            if (!(p = memchr(p, '@', end - p))) return;
            p++;
            c->in_stamp = 1;
            c->stamp = 0;
        }
        for (; p < end && *p >= '0' && *p <= '9'; p++) c->stamp = c->stamp * 10 + (*p - '0');
        if (p == end) return;
        c->in_stamp = 0;
        if (c->stamp < STAMP_LEAST) continue;
        if (!c->first_at) c->first_at = now;
        n_chunks++;
        if (in_window(now)) add(&delay, ((double)now - (double)c->stamp) / 1e3);
    }
}

// Read the head of an answer from the n bytes; how many of them it took, -1 if it is too long.
static long read_head(conn *c, const char *bytes, size_t n) {
    int before = c->head_len;
    size_t room = sizeof c->head - 1 - before, copied = n < room ? n : room;
    if (!copied) return -1;
    memcpy(c->head + before, bytes, copied);
    c->head_len += copied;
    char *end = memmem(c->head, c->head_len, "\r\n\r\n", 4);
    if (!end) return copied;
    c->head_len = end + 4 - c->head;
    c->head[c->head_len] = 0;
    long took = c->head_len - before;
    c->status = atoi(c->head + 9);
    if (c->status == 100) {
        c->head_len = 0;
        return took;
    }
    c->in_body = 1;
    c->is_chunked = c->close_after = 0;
    c->body_len = -1;
    c->body_got = 0;
    c->part = SIZE;
    c->seen = 0;
    for (char *line = strchr(c->head, '\n'); line && line[1]; line = strchr(line + 1, '\n')) {
        if (!strncasecmp(line + 1, "content-length:", 15)) c->body_len = atol(line + 16);
        else if (!strncasecmp(line + 1, "transfer-encoding: chunked", 26)) c->is_chunked = 1;
        else if (!strncasecmp(line + 1, "connection: close", 17)) c->close_after = 1;
    }
    return took;
}

static int digit(char ch) {
    if (ch >= '0' && ch <= '9') return ch - '0';
    ch |= 0x20;
    return ch >= 'a' && ch <= 'f' ? ch - 'a' + 10 : -1;
}

// Read a piece of a chunked body from the n bytes; how many it took. The end shows as is_busy 0.
static size_t read_chunked(conn *c, const char *bytes, size_t n, uint64_t now) {
    if (c->part == DATA) {
        size_t took = n < (size_t)c->chunk_left ? n : (size_t)c->chunk_left;
        take(c, bytes, took, now);
        c->chunk_left -= took;
        if (!c->chunk_left) c->part = DATA_END;
        return took;
    }
    char ch = *bytes;
    if (c->part == DATA_END) {
        if (ch == '\n') {
            c->part = SIZE;
            c->seen = 0;
        }
    } else if (c->part == SIZE) {
        if (ch == '\n') {
            c->part = c->chunk_left ? DATA : TRAILER;
            c->seen = 0;
            return 1;
        }
        if (!c->seen) {
            c->seen = 1;
            c->chunk_left = 0;
        }
        if (digit(ch) < 0) c->seen = 2;
        else if (c->seen == 1) c->chunk_left = c->chunk_left * 16 + digit(ch);
    } else if (ch == '\n') {
        if (!c->seen) c->is_busy = 0;
        c->seen = 0;
    } else if (ch != '\r') c->seen = 1;
    return 1;
}

// Read what came of an answer. 1: it is complete, 0: more to come, -1: it cannot be read.
static int feed(conn *c, const char *bytes, size_t n, uint64_t now) {
    while (n) {
        long took;
        if (!c->in_body) took = read_head(c, bytes, n);
        else if (c->is_chunked) took = read_chunked(c, bytes, n, now);
        else {
            long left = c->body_len - c->body_got;
            took = c->body_len >= 0 && left < (long)n ? left : (long)n;
            take(c, bytes, took, now);
            c->body_got += took;
        }
        if (took < 0) return -1;
        if (!c->is_busy || (c->in_body && !c->is_chunked && c->body_got == c->body_len)) return 1;
        bytes += took;
        n -= took;
    }
    return 0;
}

// ---- one request after another

static void finish(conn *c, int is_whole, uint64_t now) {
    c->is_busy = 0;
    n_all++;
    if (!is_whole || c->status != 200) {
        n_errors++;
        if (!is_whole) n_broken++;
        else {
            n_bad_status++;
            last_bad_status = c->status;
        }
    } else if (is_stream && !memmem(c->tail, c->tail_len, "[DONE]", 6)) {
        n_errors++;
        n_unfinished++;
    } else if (in_window(now)) {
        n_done++;
        add(&latency, (now - c->asked_at) / 1e3);
        if (c->first_at) add(&ttft, (c->first_at - c->asked_at) / 1e3);
    }
    if (!is_whole || c->close_after) hang_up(c);
    if (rate <= 0 && !is_stopping) begin(c, now);
    else if (rate > 0 && wait_from < wait_to) begin(c, waiting[wait_from++]);
    else if (rate > 0) idle[n_idle++] = c;
}

static void receive(conn *c) {
    static char bytes[262144];
    for (;;) {
        ssize_t r = recv(c->fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (r < 0 && errno == EAGAIN) return;
        uint64_t now = now_ns();
        if (r <= 0) {
            int is_whole = r == 0 && c->in_body && !c->is_chunked && c->body_len < 0;
            c->close_after = 1;
            if (c->is_busy) finish(c, is_whole, now);
            else hang_up(c);
            return;
        }
        if (!c->is_busy) return;
        int end = feed(c, bytes, r, now);
        if (end) {
            finish(c, end > 0, now);
            return;
        }
        if (r < (ssize_t)sizeof bytes) return;
    }
}

// Start what is due and say for how many nanoseconds nothing else will be.
static int64_t start_due(uint64_t now) {
    static uint64_t arrival;
    static int started;
    if (is_stopping) return END_TICK_NS;
    if (rate <= 0) {
        for (; started < n_conns && conns[started].start_at <= now; started++) begin(&conns[started], now);
        return started < n_conns ? (int64_t)(conns[started].start_at - now) : TICK_NS;
    }
    if (!arrival) arrival = now;
    for (; arrival <= now; arrival += (uint64_t)(-log(1 - drand48()) / rate * 1e9)) {
        if (n_idle) begin(idle[--n_idle], arrival);
        else if (wait_to < wait_cap) waiting[wait_to++] = arrival;
    }
    return arrival - now;
}

static int is_over(uint64_t now) {
    if (!is_stopping) return 0;
    if (is_stream || now > window_to + GRACE_NS) return 1;
    for (int i = 0; i < n_conns; i++)
        if (conns[i].is_busy) return 0;
    return 1;
}

static int read_body(const char *path) {
    FILE *f = path ? fopen(path, "rb") : NULL;
    if (!f) return -1;
    fseek(f, 0, SEEK_END);
    body_len = ftell(f);
    rewind(f);
    body = malloc(body_len + 1);
    size_t got = fread(body, 1, body_len, f);
    fclose(f);
    char *mark = memmem(body, body_len, "UUUUUUUUUUUUUUUU", COUNTER_BYTES);
    if ((has_counter = mark != NULL)) counter_at = mark - body;
    is_stream = memmem(body, body_len, "\"stream\":true", 13) != NULL;
    return got == body_len ? 0 : -1;
}

int main(int argc, char **argv) {
    const char *file = NULL, *path = "/v1/chat/completions";
    char extra[4096] = "";
    for (int o; (o = getopt(argc, argv, "p:b:c:d:r:w:S:P:H:")) > 0;) {
        if (o == 'p') port = atoi(optarg);
        if (o == 'b') file = optarg;
        if (o == 'c') n_conns = atoi(optarg);
        if (o == 'd') seconds = atof(optarg);
        if (o == 'r') rate = atof(optarg);
        if (o == 'w') warm_s = atof(optarg);
        if (o == 'S') stagger_s = atof(optarg);
        if (o == 'P') path = optarg;
        if (o == 'H') snprintf(extra + strlen(extra), sizeof extra - strlen(extra), "%s\r\n", optarg);
    }
    if (!port || n_conns < 1 || read_body(file)) {
        fprintf(stderr, "usage: loadgen -p PORT -b BODYFILE [options]: see its source\n");
        return 2;
    }
    head_len = snprintf(head, sizeof head,
                        "POST %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAccept: */*\r\nUser-Agent: OpenAI/Python 1.99\r\n"
                        "Authorization: Bearer sk-1234\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n"
                        "%s\r\n",
                        path, port, body_len, extra);
    signal(SIGPIPE, SIG_IGN);
    srand48(42);
    epoll = epoll_create1(0);
    conns = calloc(n_conns, sizeof *conns);
    idle = calloc(n_conns, sizeof *idle);
    if (rate > 0) waiting = malloc(wait_cap * sizeof *waiting);
    uint64_t start = now_ns();
    window_from = start + (uint64_t)(warm_s * 1e9);
    window_to = window_from + (uint64_t)(seconds * 1e9);
    for (int i = n_conns - 1; i >= 0; i--) {
        conns[i].fd = -1;
        conns[i].body = malloc(body_len);
        memcpy(conns[i].body, body, body_len);
        conns[i].start_at = start + (uint64_t)(stagger_s * 1e9 * i / n_conns);
        if (rate > 0) idle[n_idle++] = &conns[i];
    }
    for (;;) {
        uint64_t now = now_ns();
        if (now > window_to) is_stopping = 1;
        int64_t pause = start_due(now);
        if (is_over(now)) break;
        struct timespec wait = {pause / 1000000000, pause % 1000000000};
        struct epoll_event events[EVENTS];
        int n = epoll_pwait2(epoll, events, EVENTS, &wait, NULL);
        for (int i = 0; i < n; i++) {
            conn *c = events[i].data.ptr;
            if (c->fd >= 0 && events[i].events & EPOLLOUT && c->is_busy) pump(c);
            if (c->fd >= 0 && events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(c);
        }
    }
    report();
    return 0;
}
