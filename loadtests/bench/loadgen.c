// loadgen: single-thread epoll HTTP/1.1 load client (closed or open loop), SSE-aware.
// loadgen -p PORT -b BODYFILE [-c conns] [-d secs] [-n maxreq] [-r rate(open loop, Poisson)] [-w warm secs]
// [-S stagger secs] [-P path] [-H 'Name: v']... The 16 bytes UUUUUUUUUUUUUUUU in the body are replaced by a
// per-request counter. Prints one JSON line.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
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
#include <time.h>
#include <unistd.h>
typedef struct {
    int fd;
    int state; /*0 idle 1 busy*/
    size_t so;
    uint64_t t0, tfirst;
    char hb[8192];
    int hl;
    int inbody;
    int status;
    int chunked;
    long clen, got;
    int cs;
    long crem;
    uint64_t num;
    int innum;
    char tail[32];
    int tl;
    int want_out;
    uint64_t id;
    int nchunks;
    int started;
    char *body;
    uint64_t start_at;
    int close_after;
    uint64_t nreq;
} conn;
static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}
static int ep, port, C = 1, is_stream;
static double dur = 5, rate = 0, warm = 0.5, stagger = 0;
static long maxn = 1L << 60;
static char *path = "/v1/chat/completions";
static char hdrs[4096];
static char *tmpl;
static size_t blen, uoff;
static int has_u;
static char pre[8192];
static int prel;
static uint64_t ctr;
static conn *cs;
static uint64_t T0, TW, TE;
typedef struct {
    float *a;
    long n, cap;
} vec;
static vec lat, ttft, cd;
static void vadd(vec *v, double x) {
    if (v->n == v->cap) {
        v->cap = v->cap ? v->cap * 2 : 65536;
        v->a = realloc(v->a, v->cap * sizeof(float));
    }
    v->a[v->n++] = x;
}
static long done_n, err_n, err_status, err_conn, err_done, started_n, all_done, all_chunks;
static uint64_t bytes_in;
static int laststatus;
static long *idle;
static int nidle;
static uint64_t *q;
static long qh, qt, qcap;
static int cmpf(const void *a, const void *b) {
    float x = *(float *)a, y = *(float *)b;
    return x < y ? -1 : x > y;
}
static double pct(vec *v, double p) {
    if (!v->n) return 0;
    long i = (long)(p * (v->n - 1) + 0.5);
    return v->a[i];
}
static void mod(conn *c, int out) {
    struct epoll_event e = {EPOLLIN | (out ? EPOLLOUT : 0), {.ptr = c}};
    epoll_ctl(ep, EPOLL_CTL_MOD, c->fd, &e);
    c->want_out = out;
}
static int dial(conn *c) {
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    int one = 1;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, 4);
    struct sockaddr_in a = {AF_INET, htons(port), {htonl(INADDR_LOOPBACK)}};
    int r = connect(c->fd, (void *)&a, sizeof a);
    if (r < 0 && errno != EINPROGRESS) {
        close(c->fd);
        c->fd = -1;
        return -1;
    }
    struct epoll_event e = {EPOLLIN, {.ptr = c}};
    epoll_ctl(ep, EPOLL_CTL_ADD, c->fd, &e);
    c->want_out = 0;
    c->nreq = 0;
    return 0;
}
static void pump(conn *c) { // send header+body from offset so
    size_t tot = prel + blen;
    while (c->so < tot) {
        ssize_t w;
        if (c->so < (size_t)prel) {
            struct iovec {
                void *b;
                size_t l;
            } iv[2] = {{pre + c->so, prel - c->so}, {c->body, blen}};
            struct msghdr m;
            memset(&m, 0, sizeof m);
            m.msg_iov = (void *)iv;
            m.msg_iovlen = 2;
            w = sendmsg(c->fd, &m, MSG_NOSIGNAL);
        } else w = send(c->fd, c->body + (c->so - prel), tot - c->so, MSG_NOSIGNAL);
        if (w < 0) {
            if (errno == EAGAIN || errno == ENOTCONN || errno == EINPROGRESS) {
                if (!c->want_out) mod(c, 1);
                return;
            }
            return;
        }
        c->so += w;
    }
    if (c->want_out) mod(c, 0);
}
static void begin(conn *c, uint64_t t0) {
    if (c->fd < 0 && dial(c) < 0) {
        err_n++;
        err_conn++;
        return;
    }
    c->state = 1;
    c->t0 = t0;
    c->so = 0;
    c->hl = 0;
    c->inbody = 0;
    c->tfirst = 0;
    c->innum = 0;
    c->tl = 0;
    c->nchunks = 0;
    c->nreq++;
    c->id = ++ctr;
    if (has_u) {
        char u[20];
        snprintf(u, 20, "%016llu",
                 (unsigned long long)(c->id * 7919 + getpid() % 1000 * 100000000ull) % 10000000000000000ull);
        memcpy(c->body + uoff, u, 16);
    }
    started_n++;
    pump(c);
}
static int stopping;
static int err_print;
static void finish(conn *c, int ok, uint64_t t) {
    c->state = 0;
    all_done++;
    int inwin = t >= TW && t <= TE;
    if (!ok || c->status != 200) {
        err_n++;
        laststatus = c->status;
        if (c->status != 200) err_status++;
        else if (ok == 0) err_conn++;
        if (err_print < 2 && getenv("LG_DEBUG")) {
            err_print++;
            fprintf(stderr, "ERR status %d ok %d hdr: %.*s\n", c->status, ok, c->hl, c->hb);
        }
    } else {
        if (is_stream && !memmem(c->tail, c->tl, "[DONE]", 6)) {
            err_n++;
            err_done++;
        }
        if (inwin) {
            done_n++;
            vadd(&lat, (t - c->t0) / 1e3);
            if (c->tfirst) vadd(&ttft, (c->tfirst - c->t0) / 1e3);
        }
    }
    if (!ok || c->close_after) {
        close(c->fd);
        c->fd = -1;
    }
}
static void body_bytes(conn *c, const char *b, size_t n, uint64_t t) { // scan for @digits
    const char *e = b + n;
    bytes_in += n;
    {
        size_t k = n > 32 ? 32 : n;
        if (k == 32) {
            memcpy(c->tail, e - 32, 32);
            c->tl = 32;
        } else {
            int keep = c->tl + k > 32 ? 32 - (int)k : c->tl;
            memmove(c->tail, c->tail + c->tl - keep, keep);
            memcpy(c->tail + keep, e - k, k);
            c->tl = keep + k;
        }
    }
    const char *p = b;
    while (p < e) {
        if (!c->innum) {
            p = memchr(p, '@', e - p);
            if (!p) return;
            p++;
            c->innum = 1;
            c->num = 0;
        }
        while (p < e && *p >= '0' && *p <= '9') {
            c->num = c->num * 10 + (*p - '0');
            p++;
        }
        if (p < e) {
            c->innum = 0;
            if (c->num > 1000000000ull) {
                if (!c->tfirst) c->tfirst = t;
                c->nchunks++;
                all_chunks++;
                if (t >= TW && t <= TE) vadd(&cd, ((double)t - (double)c->num) / 1e3);
            }
        }
    }
}
// returns: 0 need more, 1 complete, -1 error. consumes all n bytes
static int feed(conn *c, const char *b, size_t n, uint64_t t) {
    while (n) {
        if (!c->inbody) {
            size_t room = sizeof(c->hb) - 1 - c->hl;
            size_t k = n < room ? n : room;
            if (k == 0) return -1;
            memcpy(c->hb + c->hl, b, k);
            int old = c->hl;
            c->hl += k;
            char *p = memmem(c->hb, c->hl, "\r\n\r\n", 4);
            if (!p) {
                b += k;
                n -= k;
                continue;
            }
            int he = p - c->hb + 4;
            size_t used = he - old;
            b += used;
            n -= used;
            c->hl = he;
            c->hb[he] = 0;
            c->status = atoi(c->hb + 9);
            c->chunked = 0;
            c->clen = -1;
            c->got = 0;
            c->cs = 0;
            c->close_after = 0;
            for (char *h = strchr(c->hb, '\n'); h && h + 1 < c->hb + he; h = strchr(h + 1, '\n')) {
                if (!strncasecmp(h + 1, "content-length:", 15)) c->clen = atol(h + 16);
                else if (!strncasecmp(h + 1, "transfer-encoding: chunked", 26)) c->chunked = 1;
                else if (!strncasecmp(h + 1, "connection: close", 17)) c->close_after = 1;
            }
            if (c->status == 100) {
                c->hl = 0;
                continue;
            }
            c->inbody = 1;
            if (!c->chunked && c->clen == 0) return 1;
            continue;
        }
        if (!c->chunked) {
            size_t k = n;
            if (c->clen >= 0 && (long)k > c->clen - c->got) k = c->clen - c->got;
            body_bytes(c, b, k, t);
            c->got += k;
            b += k;
            n -= k;
            if (c->clen >= 0 && c->got == c->clen) return 1;
            continue;
        }
        // chunked: cs 0=size line,1=data,2=CRLF after data,3=trailer
        if (c->cs == 0) {
            char ch = *b++;
            n--;
            if (ch == '\n') {
                if (c->crem == 0) {
                    c->cs = 3;
                    c->got = 0;
                } else c->cs = 1;
            } else if (c->got == 0) {
                c->crem = 0;
                c->got = 1;
                goto dig;
            } else {
            dig:;
                int v = -1;
                if (ch >= '0' && ch <= '9') v = ch - '0';
                else if (ch >= 'a' && ch <= 'f') v = ch - 'a' + 10;
                else if (ch >= 'A' && ch <= 'F') v = ch - 'A' + 10;
                if (v >= 0 && c->got == 1) c->crem = c->crem * 16 + v;
                else if (ch != '\r') c->got = 2;
            }
        } else if (c->cs == 1) {
            size_t k = n < (size_t)c->crem ? n : (size_t)c->crem;
            body_bytes(c, b, k, t);
            b += k;
            n -= k;
            c->crem -= k;
            if (!c->crem) c->cs = 2;
        } else if (c->cs == 2) {
            if (*b == '\n') {
                c->cs = 0;
                c->got = 0;
            }
            b++;
            n--;
        } else {
            if (*b == '\n') {
                if (c->got == 0) return 1;
                c->got = 0;
            } else if (*b != '\r') c->got = 1;
            b++;
            n--;
        }
    }
    return 0;
}
static void next_closed(conn *c, uint64_t t) {
    if (stopping || started_n >= maxn) return;
    begin(c, t);
}
static void next_open(conn *c, long i) {
    if (qh < qt) {
        begin(c, q[qh++]);
    } else idle[nidle++] = i;
}
int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN);
    int o;
    char *bf = 0;
    while ((o = getopt(argc, argv, "p:b:c:d:n:r:w:S:P:H:")) > 0) {
        if (o == 'p') port = atoi(optarg);
        if (o == 'b') bf = optarg;
        if (o == 'c') C = atoi(optarg);
        if (o == 'd') dur = atof(optarg);
        if (o == 'n') maxn = atol(optarg);
        if (o == 'r') rate = atof(optarg);
        if (o == 'w') warm = atof(optarg);
        if (o == 'S') stagger = atof(optarg);
        if (o == 'P') path = optarg;
        if (o == 'H') {
            strcat(hdrs, optarg);
            strcat(hdrs, "\r\n");
        }
    }
    FILE *f = fopen(bf, "rb");
    fseek(f, 0, SEEK_END);
    blen = ftell(f);
    rewind(f);
    tmpl = malloc(blen + 1);
    if (fread(tmpl, 1, blen, f) != blen) return 1;
    fclose(f);
    char *u = memmem(tmpl, blen, "UUUUUUUUUUUUUUUU", 16);
    if (u) {
        has_u = 1;
        uoff = u - tmpl;
    }
    is_stream = memmem(tmpl, blen, "\"stream\":true", 13) != 0;
    prel = snprintf(pre, sizeof pre,
                    "POST %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAccept: */*\r\nUser-Agent: OpenAI/Python "
                    "1.99\r\nAuthorization: Bearer sk-1234\r\nContent-Type: "
                    "application/json\r\nContent-Length: %zu\r\n%s\r\n",
                    path, port, blen, hdrs);
    ep = epoll_create1(0);
    cs = calloc(C, sizeof(conn));
    idle = malloc(sizeof(long) * (C + 1));
    T0 = now_ns();
    TW = T0 + (uint64_t)(warm * 1e9);
    TE = T0 + (uint64_t)((warm + dur) * 1e9);
    for (int i = 0; i < C; i++) {
        cs[i].fd = -1;
        cs[i].body = malloc(blen);
        memcpy(cs[i].body, tmpl, blen);
        cs[i].start_at = T0 + (uint64_t)(stagger * 1e9 * i / C);
    }
    int nstart = 0;
    uint64_t next_arr = T0;
    srand48(42);
    if (rate > 0) {
        for (int i = C - 1; i >= 0; i--) idle[nidle++] = i;
        qcap = 1 << 22;
        q = malloc(qcap * 8);
    }
    struct epoll_event ev[512];
    static char buf[262144];
    uint64_t grace = TE + 3000000000ull;
    for (;;) {
        uint64_t t = now_ns();
        if (t > TE) stopping = 1;
        int64_t wait = 100000000;
        if (rate > 0) {
            while (!stopping && started_n + (qt - qh) < maxn && next_arr <= t) {
                if (nidle) {
                    long i = idle[--nidle];
                    begin(&cs[i], next_arr);
                } else if (qt < qcap) q[qt++] = next_arr;
                next_arr += (uint64_t)(-log(1 - drand48()) / rate * 1e9);
            }
            wait = stopping ? 10000000 : (int64_t)(next_arr - t);
            if (wait < 0) wait = 0;
        } else {
            while (nstart < C && cs[nstart].start_at <= t && !stopping) {
                if (started_n < maxn) begin(&cs[nstart], t);
                nstart++;
            }
            if (nstart < C) wait = cs[nstart].start_at - t;
        }
        int busy = 0;
        if (stopping || started_n >= maxn) {
            for (int i = 0; i < C; i++)
                if (cs[i].state) busy = 1;
            if (!busy || (is_stream && t > TE) || t > grace) break;
            if (wait > 10000000) wait = 10000000;
        }
        struct timespec ts = {wait / 1000000000, wait % 1000000000};
        int n = epoll_pwait2(ep, ev, 512, &ts, 0);
        t = now_ns();
        for (int i = 0; i < n; i++) {
            conn *c = ev[i].data.ptr;
            if (c->fd < 0) continue;
            if (ev[i].events & EPOLLOUT && c->state) pump(c);
            if (!(ev[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))) continue;
            for (;;) {
                ssize_t r = recv(c->fd, buf, sizeof buf, MSG_DONTWAIT);
                if (r < 0 && errno == EAGAIN) break;
                t = now_ns();
                if (r <= 0) {
                    int fresh = c->nreq <= 1;
                    (void)fresh;
                    if (c->state) {
                        if (c->inbody && !c->chunked && c->clen < 0 && r == 0) {
                            c->close_after = 1;
                            finish(c, 1, t);
                        } else finish(c, 0, t);
                        if (c->fd >= 0) {
                            close(c->fd);
                            c->fd = -1;
                        }
                        if (rate > 0) next_open(c, c - cs);
                        else next_closed(c, t);
                    } else {
                        close(c->fd);
                        c->fd = -1;
                    }
                    break;
                }
                if (!c->state) { break; }
                int k = feed(c, buf, r, t);
                if (k) {
                    finish(c, k > 0, t);
                    if (rate > 0) next_open(c, c - cs);
                    else next_closed(c, t);
                    break;
                }
                if (r < (ssize_t)sizeof buf) break;
            }
        }
    }
    qsort(lat.a, lat.n, 4, cmpf);
    qsort(ttft.a, ttft.n, 4, cmpf);
    qsort(cd.a, cd.n, 4, cmpf);
    printf("{\"n\":%ld,\"all\":%ld,\"errors\":%ld,\"err_status\":%ld,\"last_bad_status\":%d,\"err_conn\":%ld,"
           "\"err_nodone\":%ld,\"rps\":%.1f,\"lat_p50\":%.1f,\"lat_p90\":%.1f,\"lat_p99\":%.1f,\"lat_max\":%."
           "1f,\"ttft_p50\":%.1f,\"ttft_p99\":%.1f,\"chunks\":%ld,\"all_chunks\":%ld,\"cps\":%.1f,\"cd_p50\":"
           "%.1f,\"cd_p99\":%.1f,\"cd_max\":%.1f,\"mb_in\":%.2f,\"backlog\":%ld}\n",
           done_n, all_done, err_n, err_status, laststatus, err_conn, err_done, done_n / dur, pct(&lat, .5),
           pct(&lat, .9), pct(&lat, .99), pct(&lat, 1), pct(&ttft, .5), pct(&ttft, .99), cd.n, all_chunks,
           cd.n / dur, pct(&cd, .5), pct(&cd, .99), pct(&cd, 1), bytes_in / 1e6, qt - qh);
    return 0;
}
