/* A token stream server with a known schedule that logs, in nanoseconds, when it sent what.
 *
 * All streams emit at the same tick, as an engine's decode step does. CLOCK_MONOTONIC is read just before each
 * send(), which is the clock of Python's time.perf_counter. One thread, epoll, no allocation while streaming.
 *
 * POST /generate and /v1/chat/completions stream as many tokens as asked for; GET /log gives the log, one line
 * "R <stream> <ns>" for a request read to its end and "S <stream> <ns> <tokens so far>" for an event sent;
 * POST /reset forgets it. <stream> is the request's "rid", or a running number.
 *
 * Usage: truth_server TICK_US TOKENS_PER_CHUNK PREFILL_US   (TICK_US 0: as fast as possible; TOKENS_PER_CHUNK 0: 1 to 7)
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { MAX_CONNECTIONS = 4096, INPUT = 1 << 20, LOG_LINES = 1 << 20 };

typedef struct {
    int fd, used, streaming, chat, number;
    long tokens, wanted, chunk;
    int64_t ready_ns;
    size_t length;
    char rid[31];
    char *input;
} Connection;

typedef struct {
    char kind;
    char rid[31];
    int64_t ns;
    long tokens;
} Line;

static Connection connections[MAX_CONNECTIONS];
static Line *lines;
static long line_count, request_count;
static long tick_us, per_chunk, prefill_us;
static int highest = -1;
static const char models[] = "{\"data\":[{\"id\":\"truth\",\"max_model_len\":16384}]}";

static int64_t now_ns(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (int64_t)at.tv_sec * 1000000000 + at.tv_nsec;
}

static void note(char kind, const Connection *c, int64_t ns, long tokens) {
    if (line_count == LOG_LINES) return;
    Line *line = &lines[line_count++];
    line->kind = kind;
    line->ns = ns;
    line->tokens = tokens;
    snprintf(line->rid, sizeof line->rid, "%s", c->rid);
}

static void drop(Connection *c) {
    close(c->fd);
    free(c->input);
    memset(c, 0, sizeof *c);
}

static void send_all(Connection *c, const char *data, size_t size) {
    while (size) {
        ssize_t sent = send(c->fd, data, size, MSG_NOSIGNAL);
        if (sent > 0) {
            data += sent;
            size -= (size_t)sent;
        } else if (errno == EAGAIN) {
            usleep(50);
        } else {
            drop(c);
            return;
        }
    }
}

static void answer(Connection *c, const char *body, size_t size) {
    char head[160];
    int n = snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n", size);
    send_all(c, head, (size_t)n);
    if (c->used && size) send_all(c, body, size);
}

static void give_log(Connection *c) {
    size_t size = (size_t)line_count * 96 + 1, at = 0;
    char *text = malloc(size);
    for (long i = 0; i < line_count; i++) {
        Line *l = &lines[i];
        at += (size_t)snprintf(text + at, size - at, "%c %s %lld %ld\n", l->kind, l->rid, (long long)l->ns, l->tokens);
    }
    answer(c, text, at);
    free(text);
}

/* Sends the next event of a stream: what an engine's step of `size` tokens brings. */
static void emit(Connection *c) {
    char event[1024], chunk[1200];
    long size = per_chunk ? per_chunk : 1 + (c->chunk * 5 + c->number) % 7;
    if (c->tokens + size > c->wanted) size = c->wanted - c->tokens;
    c->tokens += size;
    c->chunk++;
    int last = c->tokens >= c->wanted, n;
    if (c->chat) {
        n = snprintf(event, sizeof event,
                     "data: {\"id\":\"%s\",\"object\":\"chat.completion.chunk\",\"created\":1790000000,\"model\":\"truth\",\"choices\":[{\"index\":0,"
                     "\"delta\":{\"content\":\" word\"},\"logprobs\":null,\"finish_reason\":%s,\"matched_stop\":null}],\"usage\":{\"prompt_tokens\":16,"
                     "\"total_tokens\":%ld,\"completion_tokens\":%ld}}\n\n",
                     c->rid, last ? "\"length\"" : "null", 16 + c->tokens, c->tokens);
    } else {
        char ids[64];
        int k = 0;
        for (long i = 0; i < size; i++) k += snprintf(ids + k, sizeof ids - (size_t)k, i ? ",%ld" : "%ld", 100 + i);
        n = snprintf(event, sizeof event,
                     "data: {\"text\":\" word\",\"output_ids\":[%s],\"meta_info\":{\"id\":\"%s\",\"finish_reason\":%s,\"prompt_tokens\":16,"
                     "\"weight_version\":\"default\",\"num_retractions\":0,\"reasoning_tokens\":0,\"completion_tokens\":%ld,\"cached_tokens\":0,"
                     "\"dp_rank\":null}}\n\n",
                     ids, c->rid, last ? "{\"type\":\"length\",\"length\":0}" : "null", c->tokens);
    }
    int m = snprintf(chunk, sizeof chunk, "%x\r\n%s\r\n", (unsigned)n, event);
    note('S', c, now_ns(), c->tokens);
    send_all(c, chunk, (size_t)m);
    if (last && c->used) {
        static const char end[] = "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";
        c->streaming = 0;
        send_all(c, end, sizeof end - 1);
    }
}

static void start_stream(Connection *c, const char *body, int chat) {
    static const char head[] = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    const char *wanted = strstr(body, "max_new_tokens\":");
    if (!wanted) wanted = strstr(body, "max_tokens\":");
    if (!wanted) wanted = strstr(body, "max_completion_tokens\":");
    const char *rid = strstr(body, "\"rid\":");
    c->number = (int)request_count++;
    c->wanted = wanted ? atol(strchr(wanted, ':') + 1) : 16;
    c->tokens = c->chunk = 0;
    c->chat = chat;
    c->streaming = 1;
    if (rid) {
        rid = strchr(rid + 6, '"') + 1;
        size_t n = strcspn(rid, "\"");
        snprintf(c->rid, sizeof c->rid, "%.*s", (int)(n < 30 ? n : 30), rid);
    } else {
        snprintf(c->rid, sizeof c->rid, "n%d", c->number);
    }
    int64_t at = now_ns();
    c->ready_ns = at + prefill_us * 1000;
    note('R', c, at, 0);
    send_all(c, head, sizeof head - 1);
}

/* Handles one whole request at the start of the input, if there is one. */
static int serve(Connection *c) {
    char *end = memmem(c->input, c->length, "\r\n\r\n", 4);
    if (!end) return 0;
    size_t head = (size_t)(end - c->input) + 4, body = 0;
    *end = 0;
    char *length = strcasestr(c->input, "content-length:");
    if (length) body = strtoul(length + 15, NULL, 10);
    *end = '\r';
    if (c->length < head + body) return 0;
    char saved = c->input[head + body];
    c->input[head + body] = 0;
    if (!strncmp(c->input, "POST /generate", 14)) start_stream(c, c->input + head, 0);
    else if (!strncmp(c->input, "POST /v1/chat/completions", 25)) start_stream(c, c->input + head, 1);
    else if (!strncmp(c->input, "GET /log", 8)) give_log(c);
    else if (!strncmp(c->input, "POST /reset", 11)) line_count = 0, answer(c, "{}", 2);
    else if (!strncmp(c->input, "GET /v1/models", 14)) answer(c, models, sizeof models - 1);
    else answer(c, "{}", 2);
    if (!c->used) return 0;
    c->input[head + body] = saved;
    c->length -= head + body;
    memmove(c->input, c->input + head + body, c->length);
    return 1;
}

static void receive(Connection *c) {
    ssize_t n = recv(c->fd, c->input + c->length, INPUT - c->length - 1, 0);
    if (n == 0 || (n < 0 && errno != EAGAIN)) {
        drop(c);
        return;
    }
    if (n > 0) c->length += (size_t)n;
    while (c->used && serve(c)) {
    }
}

static void accept_all(int listener, int poller) {
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
        if (fd < 0) return;
        int one = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (fd >= MAX_CONNECTIONS) {
            close(fd);
            continue;
        }
        Connection *c = &connections[fd];
        memset(c, 0, sizeof *c);
        c->fd = fd;
        c->used = 1;
        c->input = malloc(INPUT);
        if (fd > highest) highest = fd;
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
        epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
    }
}

int main(int argc, char **argv) {
    if (argc != 4) return fprintf(stderr, "usage: truth_server TICK_US TOKENS_PER_CHUNK PREFILL_US\n"), 2;
    tick_us = atol(argv[1]);
    per_chunk = atol(argv[2]);
    prefill_us = atol(argv[3]);
    lines = malloc(sizeof(Line) * LOG_LINES);
    memset(lines, 0, sizeof(Line) * LOG_LINES);
    signal(SIGPIPE, SIG_IGN);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), poller = epoll_create1(0);
    int ticker = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    if (bind(listener, (struct sockaddr *)&address, size) || listen(listener, 1024)) return perror("listen"), 1;
    getsockname(listener, (struct sockaddr *)&address, &size);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[256];
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event);
    if (tick_us) {
        struct itimerspec every = {{tick_us / 1000000, tick_us % 1000000 * 1000}, {tick_us / 1000000, tick_us % 1000000 * 1000}};
        timerfd_settime(ticker, 0, &every, NULL);
        event.data.fd = ticker;
        epoll_ctl(poller, EPOLL_CTL_ADD, ticker, &event);
    }
    for (int busy = 0;;) {
        int n = epoll_wait(poller, events, 256, !tick_us && busy ? 0 : -1);
        int step = !tick_us;
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd;
            uint64_t expired;
            if (fd == listener) accept_all(listener, poller);
            else if (fd == ticker) step = read(ticker, &expired, sizeof expired) == sizeof expired;
            else if (connections[fd].used) receive(&connections[fd]);
        }
        if (!step) continue;
        int64_t now = now_ns();
        busy = 0;
        for (int fd = 0; fd <= highest; fd++) {
            Connection *c = &connections[fd];
            if (c->used && c->streaming && now >= c->ready_ns) emit(c);
            busy |= c->used && c->streaming;
        }
    }
}
