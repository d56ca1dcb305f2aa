// Load over kept-alive HTTP/1.1 connections: one thread, epoll, the next request as soon as an answer is whole.
//
//   load -p PORT [-u PATH] -b BODY-FILE [-H "Name: value"]... [-k TEXT] [-s] -c CONNECTIONS -d SECONDS [-n REQUESTS]
//
//   -k   the 12 digits after TEXT in the body are a new number in every request: every request a conversation of its own
//   -s   streams: counts server-sent events, and the time to the first and between them
//   -n   stops after so many requests, or after the seconds, whichever comes first
//
// Prints one JSON object. Times are in microseconds; `failed` are connections that broke, `refused` answers that were
// not 2xx; `unfinished` had no answer when the time for those under way was up.
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
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define MAX_EVENTS 512
#define READ_ROOM 32768
#define KEPT 16  // bytes of a stream kept to find an event or the end that comes in two parts
#define DIGITS 12
#define PATIENCE 20.0  // seconds after the end for answers under way

typedef struct {
    float *values;
    size_t length, capacity;
} series;

enum state { IDLE, DIALING, WAITING };

typedef struct {
    int fd;
    enum state state;
    char number[DIGITS + 1];
    size_t sent;
    int send_blocked;
    // The answer so far.
    char *in;
    size_t length, capacity;
    int head_read, status, chunked, closes;
    long declared;
    double started, first_event, last_event;
} connection;

static int epoll, port, streaming;
static char *request;
static size_t request_length;
static size_t number_at;  // 0: every request is the same
static double ends_at;
static unsigned long issued, most_requests, ok, refused, failed, reconnected, events, bytes;
static series latency, first_event, between_events;
static int statuses[600];

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void add(series *s, double seconds) {
    if (s->length == s->capacity) {
        s->capacity = s->capacity ? s->capacity * 2 : 1 << 16;
        s->values = realloc(s->values, s->capacity * sizeof *s->values);
    }
    s->values[s->length++] = seconds * 1e6;
}

static int ascending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

static double percentile(const series *s, double share) {
    return s->length ? s->values[(size_t)(share * (s->length - 1))] : 0;
}

// ---- connections

static int over(void) { return (most_requests && issued >= most_requests) || now() >= ends_at; }

static void watch(connection *c, unsigned wanted, int operation) {
    struct epoll_event event = {.events = wanted, .data.ptr = c};
    epoll_ctl(epoll, operation, c->fd, &event);
}

static void dial(connection *c) {
    int on = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    connect(c->fd, (void *)&address, sizeof address);
    c->state = DIALING;
    c->send_blocked = 0;
    watch(c, EPOLLOUT, EPOLL_CTL_ADD);
}

static void redial(connection *c) {
    close(c->fd);
    c->state = IDLE;
    if (over()) return;
    reconnected++;
    dial(c);
}

static void fail(connection *c) {
    failed++;
    redial(c);
}

// The request from the byte on that was not sent yet: its beginning, this connection's number, its rest.
static int rest_of_request(connection *c, struct iovec *parts) {
    struct iovec whole[3] = {
        {request, number_at},
        {c->number, number_at ? DIGITS : 0},
        {request + number_at + (number_at ? DIGITS : 0), request_length - number_at - (number_at ? DIGITS : 0)},
    };
    size_t skip = c->sent;
    int count = 0;
    for (int i = 0; i < 3; i++) {
        if (skip >= whole[i].iov_len) {
            skip -= whole[i].iov_len;
            continue;
        }
        parts[count].iov_base = (char *)whole[i].iov_base + skip;
        parts[count++].iov_len = whole[i].iov_len - skip;
        skip = 0;
    }
    return count;
}

// -1: the connection is broken.
static int send_request(connection *c) {
    while (c->sent < request_length) {
        struct iovec parts[3];
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = rest_of_request(c, parts)};
        ssize_t sent = sendmsg(c->fd, &message, MSG_NOSIGNAL);
        if (sent < 0) {
            if (errno != EAGAIN) return -1;
            if (!c->send_blocked) watch(c, EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD);
            c->send_blocked = 1;
            return 0;
        }
        c->sent += sent;
    }
    if (c->send_blocked) watch(c, EPOLLIN, EPOLL_CTL_MOD);
    c->send_blocked = 0;
    return 0;
}

static void next_request(connection *c) {
    if (over()) {
        c->state = IDLE;
        return;
    }
    if (number_at) {
        static unsigned long long number;
        if (!number) number = time(0) % 100000 * 10000000ULL;  // another run has other conversations
        snprintf(c->number, sizeof c->number, "%0*llu", DIGITS, number++);
    }
    issued++;
    c->state = WAITING;
    c->sent = c->length = 0;
    c->head_read = 0;
    c->first_event = c->last_event = 0;
    c->started = now();
    if (send_request(c) < 0) fail(c);
}

// ---- answers

// Whether the head has come; it is taken off the buffer.
static int read_head(connection *c) {
    char *end = memmem(c->in, c->length, "\r\n\r\n", 4);
    if (!end) return 0;
    size_t head = end - c->in + 4;
    end[3] = 0;
    char *declared = strcasestr(c->in, "\r\ncontent-length:");
    c->status = c->length > 12 ? atoi(c->in + 9) : 0;
    c->declared = declared ? atol(declared + 17) : -1;
    c->chunked = !!strcasestr(c->in, "\r\ntransfer-encoding: chunked");
    c->closes = !!strcasestr(c->in, "\r\nconnection: close");
    c->head_read = 1;
    c->length -= head;
    memmove(c->in, c->in + head, c->length);
    return 1;
}

static int is_whole(connection *c) {
    if (!c->chunked) return c->declared >= 0 && (long)c->length >= c->declared;
    if (c->length < 5 || memcmp(c->in + c->length - 5, "0\r\n\r\n", 5)) return 0;
    return c->length == 5 || c->in[c->length - 6] == '\n';
}

// Counts the events that ended up in the buffer behind `from`, a place that was looked at before.
static void count_events(connection *c, size_t from, double t) {
    unsigned long found = 0;
    const char *at = c->in + from, *end = c->in + c->length;
    while ((at = memmem(at, end - at, "data:", 5))) {
        found++;
        at += 5;
    }
    if (!found) return;
    if (!c->first_event) {
        c->first_event = t;
        add(&first_event, t - c->started);
    } else {
        add(&between_events, t - c->last_event);
    }
    c->last_event = t;
    events += found;
}

// Whether the answer is whole, after bytes came behind `before`.
static int take(connection *c, size_t before, double t) {
    int had_head = c->head_read;
    if (!had_head && !read_head(c)) return 0;
    if (streaming) count_events(c, had_head && before > 4 ? before - 4 : 0, t);
    if (is_whole(c)) return 1;
    if (streaming && c->chunked && c->length > READ_ROOM / 2) {
        memmove(c->in, c->in + c->length - KEPT, KEPT);
        c->length = KEPT;
    }
    return 0;
}

static void finish(connection *c, int gone, double t) {
    add(&latency, t - c->started);
    if (c->status >= 200 && c->status < 300)
        ok++;
    else
        refused++;
    if (c->status > 0 && c->status < 600) statuses[c->status]++;
    if (gone || c->closes)
        redial(c);
    else
        next_request(c);
}

// The time of the answer's end, 0 while it is under way.
static double receive(connection *c) {
    int gone = 0;
    size_t before = c->length;
    for (;;) {
        if (c->capacity - c->length < READ_ROOM) {
            c->capacity *= 2;
            c->in = realloc(c->in, c->capacity);
        }
        size_t room = c->capacity - c->length;
        ssize_t got = recv(c->fd, c->in + c->length, room, 0);
        if (got > 0) {
            c->length += got;
            bytes += got;
            if ((size_t)got < room) break;
            continue;
        }
        gone = got == 0 || errno != EAGAIN;
        break;
    }
    double t = now();
    if (c->length > before && take(c, before, t)) {
        finish(c, gone, t);
        return t;
    }
    if (gone) fail(c);
    return 0;
}

static double handle(connection *c, unsigned what) {
    if (c->state == IDLE) return 0;
    if (c->state == DIALING) {
        int error = 0;
        socklen_t size = sizeof error;
        getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &size);
        if (error) {
            usleep(1000);
            fail(c);
        } else {
            watch(c, EPOLLIN, EPOLL_CTL_MOD);
            next_request(c);
        }
        return 0;
    }
    if ((what & EPOLLOUT) && send_request(c) < 0) {
        fail(c);
        return 0;
    }
    return what & (EPOLLIN | EPOLLHUP | EPOLLERR) ? receive(c) : 0;
}

// ---- the command

static void read_body(const char *path, const char *url, const char *headers, const char *marker) {
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        exit(1);
    }
    fseek(file, 0, SEEK_END);
    size_t length = ftell(file);
    rewind(file);
    request = malloc(length + 16384);
    request_length = sprintf(request,
                             "POST %s HTTP/1.1\r\n"
                             "Host: 127.0.0.1:%d\r\n"
                             "Content-Type: application/json\r\n"
                             "Accept: */*\r\n"
                             "User-Agent: load/1\r\n"
                             "%sContent-Length: %zu\r\n\r\n",
                             url, port, headers, length);
    char *body = request + request_length;
    if (fread(body, 1, length, file) != length) exit(1);
    fclose(file);
    request_length += length;
    if (marker) {
        char *found = memmem(body, length, marker, strlen(marker));
        if (!found) {
            fprintf(stderr, "%s: no %s in it\n", path, marker);
            exit(1);
        }
        number_at = found + strlen(marker) - request;
    }
}

static void print(int connections, double seconds, int unfinished) {
    qsort(latency.values, latency.length, sizeof *latency.values, ascending);
    printf("{\"in_flight\":%d,\"seconds\":%.3f,\"ok\":%lu,\"refused\":%lu,\"failed\":%lu,\"unfinished\":%d,"
           "\"reconnected\":%lu,\"per_second\":%.1f,\"p50\":%.1f,\"p99\":%.1f,\"bytes\":%lu",
           connections, seconds, ok, refused, failed, unfinished, reconnected, (ok + refused) / seconds,
           percentile(&latency, .5), percentile(&latency, .99), bytes);
    if (streaming) {
        qsort(first_event.values, first_event.length, sizeof *first_event.values, ascending);
        qsort(between_events.values, between_events.length, sizeof *between_events.values, ascending);
        printf(",\"events\":%lu,\"events_per_second\":%.1f,\"first_event_p50\":%.1f,\"first_event_p99\":%.1f,"
               "\"gap_p50\":%.1f,\"gap_p99\":%.1f",
               events, events / seconds, percentile(&first_event, .5), percentile(&first_event, .99),
               percentile(&between_events, .5), percentile(&between_events, .99));
    }
    printf(",\"statuses\":{");
    const char *comma = "";
    for (int status = 0; status < 600; status++)
        if (statuses[status]) {
            printf("%s\"%d\":%d", comma, status, statuses[status]);
            comma = ",";
        }
    printf("}}\n");
}

int main(int count, char **arguments) {
    const char *url = "/v1/chat/completions", *body = 0, *marker = 0;
    char headers[8192] = "";
    int connections = 1, option;
    double seconds = 5;
    while ((option = getopt(count, arguments, "p:u:b:H:k:c:d:n:s")) > 0) switch (option) {
            case 'p': port = atoi(optarg); break;
            case 'u': url = optarg; break;
            case 'b': body = optarg; break;
            case 'k': marker = optarg; break;
            case 'c': connections = atoi(optarg); break;
            case 'd': seconds = atof(optarg); break;
            case 'n': most_requests = atol(optarg); break;
            case 's': streaming = 1; break;
            case 'H':
                if (strlen(headers) + strlen(optarg) + 3 > sizeof headers) return 2;
                strcat(strcat(headers, optarg), "\r\n");
                break;
            default: return 2;
        }
    if (!port || !body || connections < 1) {
        fprintf(stderr, "load: -p and -b are needed\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    read_body(body, url, headers, marker);

    epoll = epoll_create1(0);
    connection *all = calloc(connections, sizeof *all);
    double started = now(), last_answer = started;
    ends_at = started + seconds;
    for (int i = 0; i < connections; i++) {
        all[i].capacity = 2 * READ_ROOM;
        all[i].in = malloc(all[i].capacity);
        dial(&all[i]);
    }
    struct epoll_event ready[MAX_EVENTS];
    for (;;) {
        int busy = 0;
        for (int i = 0; i < connections && !busy; i++) busy = all[i].state != IDLE;
        if (!busy || now() > ends_at + PATIENCE) break;
        int found = epoll_wait(epoll, ready, MAX_EVENTS, 200);
        for (int i = 0; i < found; i++) {
            double t = handle(ready[i].data.ptr, ready[i].events);
            if (t) last_answer = t;
        }
    }
    int unfinished = 0;
    for (int i = 0; i < connections; i++) unfinished += all[i].state == WAITING;
    print(connections, (last_answer > started ? last_answer : now()) - started, unfinished);
    return 0;
}
