// A provider that answers at once: one thread, epoll, OpenAI Chat and Anthropic Messages.
//
//   upstream PORT...        listens on 127.0.0.1; port 0 takes a free one. Prints the ports, one line, when it is ready.
//
//   POST .../chat/completions   a Chat answer, or its stream when the body says "stream":true
//   POST .../messages           the same for Messages
//   GET  .../stats              what was counted, as JSON; any other GET lists one model
//
// "MOCK:<events>:<milliseconds>:" in a prompt sets how many content events a stream has and how far apart they are
// (100 and 0 without it). Every event is a chunk of its own and sent on its own, as model servers do it.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_LISTENERS 16
#define MAX_EVENTS 512
#define READ_ROOM 8192

typedef struct connection {
    int fd;
    int listens;
    // What came and is not yet answered.
    char *in;
    size_t length, capacity;
    // What could not be sent yet.
    char *waiting;
    size_t waiting_length, waiting_sent;
    int blocked;
    // The stream under way: which script, how far, and when the next event is due.
    int streaming;
    const struct script *script;
    int next, content_events;
    double delay, due;
    struct connection *after, *before;
} connection;

typedef struct {
    char bytes[2048];
    int length;
} text;

// A stream: `opening` events, then content events, then `closing` ones. All are whole HTTP chunks.
typedef struct script {
    text opening[2], content, closing[3];
    int openings, closings;
} script;

static int epoll;
static connection streams;  // the ring's head
static text chat_answer, messages_answer;
static script chat_stream, messages_stream;
static unsigned long requests, streams_started, streams_done, streams_aborted, connections;

static const char STREAM_HEAD[] =
    "HTTP/1.1 200 OK\r\n"
    "Content-Type: text/event-stream; charset=utf-8\r\n"
    "Cache-Control: no-cache\r\n"
    "x-request-id: req_mock\r\n"
    "Transfer-Encoding: chunked\r\n"
    "Connection: keep-alive\r\n\r\n";

static const char LAST_CHUNK[] = "0\r\n\r\n";

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

// ---- what is sent

static text chunk(const char *event) {
    text made;
    made.length = snprintf(made.bytes, sizeof made.bytes, "%zx\r\n%s\r\n", strlen(event), event);
    return made;
}

static text last(const char *event) {
    text made = chunk(event);
    memcpy(made.bytes + made.length, LAST_CHUNK, sizeof LAST_CHUNK);
    made.length += sizeof LAST_CHUNK - 1;
    return made;
}

static text answer(const char *body) {
    text made;
    made.length = snprintf(made.bytes, sizeof made.bytes,
                           "HTTP/1.1 200 OK\r\n"
                           "Content-Type: application/json\r\n"
                           "x-request-id: req_mock\r\n"
                           "Content-Length: %zu\r\n"
                           "Connection: keep-alive\r\n\r\n%s",
                           strlen(body), body);
    return made;
}

#define SENTENCE                                                                        \
    "Hello! This is a mock answer from a very fast upstream, some two dozen tokens long, " \
    "so that it looks like an answer."

static void write_chat(void) {
    chat_answer = answer(
        "{\"id\":\"chatcmpl-mock0001\",\"object\":\"chat.completion\",\"created\":1732900000,"
        "\"model\":\"gpt-4o-mini-2024-07-18\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\","
        "\"content\":\"" SENTENCE "\",\"refusal\":null},\"logprobs\":null,\"finish_reason\":\"stop\"}],"
        "\"usage\":{\"prompt_tokens\":25,\"completion_tokens\":24,\"total_tokens\":49,"
        "\"prompt_tokens_details\":{\"cached_tokens\":0},\"completion_tokens_details\":{\"reasoning_tokens\":0}},"
        "\"system_fingerprint\":\"fp_mock\"}");
#define CHUNK(rest)                                                                                       \
    "data: {\"id\":\"chatcmpl-mock0001\",\"object\":\"chat.completion.chunk\",\"created\":1732900000,"     \
    "\"model\":\"gpt-4o-mini-2024-07-18\",\"system_fingerprint\":\"fp_mock\"," rest "}\n\n"
#define CHOICE(delta, finish) \
    CHUNK("\"choices\":[{\"index\":0,\"delta\":{" delta "},\"logprobs\":null,\"finish_reason\":" finish "}]")
    script *s = &chat_stream;
    s->openings = 1;
    s->opening[0] = chunk(CHOICE("\"role\":\"assistant\",\"content\":\"\",\"refusal\":null", "null"));
    s->content = chunk(CHOICE("\"content\":\" token\"", "null"));
    s->closings = 3;
    s->closing[0] = chunk(CHOICE("", "\"stop\""));
    s->closing[1] = chunk(
        CHUNK("\"choices\":[],\"usage\":{\"prompt_tokens\":25,\"completion_tokens\":100,\"total_tokens\":125}"));
    s->closing[2] = last("data: [DONE]\n\n");
}

static void write_messages(void) {
    messages_answer = answer(
        "{\"id\":\"msg_mock0001\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"claude-sonnet-4-5-20250929\","
        "\"content\":[{\"type\":\"text\",\"text\":\"" SENTENCE "\"}],\"stop_reason\":\"end_turn\",\"stop_sequence\":null,"
        "\"usage\":{\"input_tokens\":25,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":0,"
        "\"output_tokens\":24}}");
#define EVENT(name, rest) "event: " name "\ndata: {\"type\":\"" name "\"" rest "}\n\n"
    script *s = &messages_stream;
    s->openings = 2;
    s->opening[0] = chunk(
        EVENT("message_start",
              ",\"message\":{\"id\":\"msg_mock0001\",\"type\":\"message\",\"role\":\"assistant\","
              "\"model\":\"claude-sonnet-4-5-20250929\",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,"
              "\"usage\":{\"input_tokens\":25,\"output_tokens\":1}}"));
    s->opening[1] =
        chunk(EVENT("content_block_start", ",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}"));
    s->content =
        chunk(EVENT("content_block_delta", ",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\" token\"}"));
    s->closings = 3;
    s->closing[0] = chunk(EVENT("content_block_stop", ",\"index\":0"));
    s->closing[1] = chunk(EVENT("message_delta",
                                ",\"delta\":{\"stop_reason\":\"end_turn\",\"stop_sequence\":null},"
                                "\"usage\":{\"output_tokens\":100}"));
    s->closing[2] = last(EVENT("message_stop", ""));
}

// ---- connections

static void watch(connection *c, unsigned events, int operation) {
    struct epoll_event event = {.events = events, .data.ptr = c};
    epoll_ctl(epoll, operation, c->fd, &event);
}

static void stop_streaming(connection *c) {
    c->streaming = 0;
    c->after->before = c->before;
    c->before->after = c->after;
}

static void drop(connection *c) {
    if (c->streaming) {
        streams_aborted++;
        stop_streaming(c);
    }
    close(c->fd);
    free(c->in);
    free(c->waiting);
    free(c);
    connections--;
}

// Sends, or keeps what the socket does not take. -1: the client is gone.
static int put(connection *c, const char *bytes, size_t length) {
    ssize_t sent = send(c->fd, bytes, length, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent == (ssize_t)length) return 0;
    if (sent < 0) {
        if (errno != EAGAIN) return -1;
        sent = 0;
    }
    c->waiting_length = length - sent;
    c->waiting_sent = 0;
    c->waiting = realloc(c->waiting, c->waiting_length);
    memcpy(c->waiting, bytes + sent, c->waiting_length);
    c->blocked = 1;
    watch(c, EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD);
    return 0;
}

static int send_waiting(connection *c) {
    ssize_t sent =
        send(c->fd, c->waiting + c->waiting_sent, c->waiting_length - c->waiting_sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) return errno == EAGAIN ? 0 : -1;
    c->waiting_sent += sent;
    if (c->waiting_sent == c->waiting_length) {
        c->blocked = 0;
        watch(c, EPOLLIN, EPOLL_CTL_MOD);
    }
    return 0;
}

// Sends a stream's next event. 1: it was the last one; -1: the client is gone.
static int send_event(connection *c) {
    const script *s = c->script;
    int i = c->next++, closing = i - s->openings - c->content_events;
    const text *event = i < s->openings ? &s->opening[i] : closing < 0 ? &s->content : &s->closing[closing];
    if (put(c, event->bytes, event->length) < 0) return -1;
    return closing == s->closings - 1;
}

static int begin_stream(connection *c, const script *s, const char *body, size_t length) {
    c->script = s;
    c->next = 0;
    c->content_events = 100;
    c->delay = 0;
    const char *marker = memmem(body, length, "MOCK:", 5);
    int events;
    double milliseconds;
    if (marker && sscanf(marker + 5, "%d:%lf", &events, &milliseconds) == 2) {
        c->content_events = events;
        c->delay = milliseconds / 1000;
    }
    streams_started++;
    if (put(c, STREAM_HEAD, sizeof STREAM_HEAD - 1) < 0) return -1;
    c->streaming = 1;
    c->due = now();
    c->after = streams.after;
    c->before = &streams;
    streams.after->before = c;
    streams.after = c;
    return 0;
}

static int answer_get(connection *c, int wants_stats) {
    char body[512];
    if (wants_stats)
        snprintf(body, sizeof body,
                 "{\"requests\":%lu,\"streams_started\":%lu,\"streams_done\":%lu,\"streams_aborted\":%lu,"
                 "\"connections\":%lu}",
                 requests, streams_started, streams_done, streams_aborted, connections);
    else
        snprintf(body, sizeof body,
                 "{\"object\":\"list\",\"data\":[{\"id\":\"gpt-4o-mini\",\"object\":\"model\","
                 "\"created\":1732900000,\"owned_by\":\"mock\"}]}");
    text made = answer(body);
    return put(c, made.bytes, made.length);
}

static int handle(connection *c, const char *head, size_t head_length, const char *body, size_t length) {
    const char *line_end = memchr(head, '\r', head_length);
    size_t line = line_end - head;
    if (memcmp(head, "POST", 4)) return answer_get(c, !!memmem(head, line, "/stats", 6));
    requests++;
    int messages = !!memmem(head, line, "/messages", 9);
    int stream = memmem(body, length, "\"stream\":true", 13) || memmem(body, length, "\"stream\": true", 14);
    if (stream) return begin_stream(c, messages ? &messages_stream : &chat_stream, body, length);
    text *made = messages ? &messages_answer : &chat_answer;
    return put(c, made->bytes, made->length);
}

// The end of a chunked body that begins at `at`, moved together in place from there; 0: it is not whole yet.
static size_t gather_chunks(connection *c, size_t at, size_t *length) {
    size_t position = at;
    for (int pass = 0; pass < 2; pass++) {
        size_t to = position = at;
        for (;;) {
            char *line_end = memmem(c->in + position, c->length - position, "\r\n", 2);
            if (!line_end) return 0;
            size_t size = strtoul(c->in + position, 0, 16), start = line_end - c->in + 2;
            if (start + size + 2 > c->length) return 0;
            if (pass) memmove(c->in + to, c->in + start, size);
            to += size;
            position = start + size + 2;
            if (!size) break;
        }
        *length = to - at;
    }
    return position;
}

// Answers the whole requests that have come, one after the other. -1: the client is gone.
static int read_requests(connection *c) {
    while (c->length && !c->streaming) {
        char *head_end = memmem(c->in, c->length, "\r\n\r\n", 4);
        if (!head_end) return 0;
        size_t head = head_end - c->in + 4, length = 0, end = head;
        head_end[3] = 0;
        char *declared = strcasestr(c->in, "\r\ncontent-length:");
        char *chunked = strcasestr(c->in, "\r\ntransfer-encoding: chunked");
        head_end[3] = '\n';
        if (chunked) {
            end = gather_chunks(c, head, &length);
            if (!end) return 0;
        } else if (declared) {
            length = strtoul(declared + 17, 0, 10);
            end = head + length;
            if (c->length < end) return 0;
        }
        if (handle(c, c->in, head, c->in + head, length) < 0) return -1;
        memmove(c->in, c->in + end, c->length - end);
        c->length -= end;
    }
    return 0;
}

static void accept_all(connection *listener) {
    for (;;) {
        int fd = accept4(listener->fd, 0, 0, SOCK_NONBLOCK), on = 1;
        if (fd < 0) return;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        connection *c = calloc(1, sizeof *c);
        c->fd = fd;
        c->capacity = 2 * READ_ROOM;
        c->in = malloc(c->capacity);
        connections++;
        watch(c, EPOLLIN, EPOLL_CTL_ADD);
    }
}

// 0: read what there is; -1: the client is gone.
static int receive(connection *c) {
    for (;;) {
        if (c->capacity - c->length < READ_ROOM) {
            c->capacity *= 2;
            c->in = realloc(c->in, c->capacity);
        }
        size_t room = c->capacity - c->length;
        ssize_t got = recv(c->fd, c->in + c->length, room, 0);
        if (got == 0) return -1;
        if (got < 0) return errno == EAGAIN ? 0 : -1;
        c->length += got;
        if ((size_t)got < room) return 0;
    }
}

static void send_due_events(void) {
    double t = now();
    connection *c = streams.after;
    while (c != &streams) {
        connection *after = c->after;
        if (!c->blocked && c->due <= t) {
            c->due = c->delay > 0 ? c->due + c->delay : t;
            int done = send_event(c);
            if (done > 0) {
                stop_streaming(c);
                streams_done++;
                done = read_requests(c);
            }
            if (done < 0) drop(c);
        }
        c = after;
    }
}

// Milliseconds to sleep: none while an event is due, one while a paced stream runs, else until something comes.
static int patience(void) {
    if (streams.after == &streams) return -1;
    double t = now();
    for (connection *c = streams.after; c != &streams; c = c->after)
        if (!c->blocked && c->due <= t) return 0;
    return 1;
}

static int listen_on(connection *listener, int port) {
    int on = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    socklen_t size = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    listener->listens = 1;
    setsockopt(listener->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener->fd, (void *)&address, size) || listen(listener->fd, 4096)) return -1;
    getsockname(listener->fd, (void *)&address, &size);
    watch(listener, EPOLLIN, EPOLL_CTL_ADD);
    return ntohs(address.sin_port);
}

int main(int count, char **arguments) {
    static connection listeners[MAX_LISTENERS];
    signal(SIGPIPE, SIG_IGN);
    write_chat();
    write_messages();
    streams.after = streams.before = &streams;
    epoll = epoll_create1(0);
    for (int i = 1; i < count && i <= MAX_LISTENERS; i++) {
        int port = listen_on(&listeners[i - 1], atoi(arguments[i]));
        if (port < 0) {
            perror(arguments[i]);
            return 1;
        }
        printf("%s%d", i > 1 ? " " : "", port);
    }
    printf("\n");
    fflush(stdout);

    struct epoll_event events[MAX_EVENTS];
    for (;;) {
        int ready = epoll_wait(epoll, events, MAX_EVENTS, patience());
        for (int i = 0; i < ready; i++) {
            connection *c = events[i].data.ptr;
            if (c->listens) {
                accept_all(c);
                continue;
            }
            if ((events[i].events & EPOLLOUT) && c->blocked && send_waiting(c) < 0) {
                drop(c);
                continue;
            }
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR) && (receive(c) < 0 || read_requests(c) < 0)) drop(c);
        }
        send_due_events();
    }
}
