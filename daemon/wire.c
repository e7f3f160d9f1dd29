/* SPDX-License-Identifier: Apache-2.0 */
#include "wire_internal.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define FRAME_NS UINT64_C(10000000000) /* a frame that has begun ends within this */
#define READ_MAX (64u << 10)           /* bytes a run() takes */
#define WRITE_MAX (256u << 10)         /* bytes a run() gives */
#define CHUNK (16u << 10)
#define HANDSHAKE_MAX (128u << 10) /* bytes taken from a stranger */
#define UNKNOWN_MAX 512u           /* buffer for a stranger's greeting, proof or refusal */
#define FRAME_ALL (sizeof(struct mcd_wire_frame) + MCD_WIRE_FRAME_MAX + MCD_WIRE_MAC)

/*
 *   CONNECTING -> GREETING -> PROOF ------------------------> READY
 *                          -> TLS_FIRST -> TLS -> REPEATED -> READY      each -> BROKEN
 */
enum state {
    CONNECTING,
    GREETING,  /* waits for the peer's */
    PROOF,     /* none, psk: waits for the peer's */
    TLS_FIRST, /* waits for a byte that tells a refusal from TLS */
    TLS,       /* the handshake */
    REPEATED,  /* waits for the greeting inside TLS */
    READY,
    BROKEN
};

struct mcd_wire {
    struct mcd_wire_options o;
    struct mcd_wire_stats no_stats, *stats;
    enum state state;
    int fd;
    bool running, destroyed; /* inside run(): freed at its end */
    bool overflowed;
    int write_error;
    struct mcd_wire_greeting ours, theirs;
    uint16_t version;
    struct mcd_wire_psk *psk;
    struct mcd_wire_tls *tls;
    struct mcd_wire_buffer in, out, plain; /* from and to the socket; before encryption */
    uint64_t sequence_in, sequence_out;
    uint64_t created, received, partial_since, now; /* ns; partial_since 0: no frame has begun */
    uint64_t handshake_bytes;
};

static bool alive(const struct mcd_wire *w)
{
    return w->state != BROKEN && !w->destroyed;
}

static uint64_t clock_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- out ---- */

/* Gives to the socket what it takes; an error is remembered. */
static void flush(struct mcd_wire *w)
{
    size_t budget = WRITE_MAX, n;
    ssize_t sent;

    while (w->write_error == 0 && budget > 0 && (n = mcd_wire_buffer_size(&w->out)) > 0) {
        sent = send(w->fd, w->out.data + w->out.begin, n < budget ? n : budget,
                    MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0) {
            if (errno != EAGAIN && errno != EWOULDBLOCK)
                w->write_error = errno;
            break;
        }
        w->stats->bytes_out += (uint64_t)sent;
        budget -= (size_t)sent;
        mcd_wire_buffer_drop(&w->out, (size_t)sent);
    }
}

/* A record at a time, so that OpenSSL's own buffer stays small. */
static int encrypt(struct mcd_wire *w, const uint8_t *data, size_t size)
{
    int res = 0;

    while (res == 0 && size > 0) {
        size_t n = size < CHUNK ? size : CHUNK;

        res = mcd_wire_tls_write(w->tls, data, n);
        if (res == 0)
            res = mcd_wire_tls_take(w->tls, &w->out);
        data += n;
        size -= n;
    }
    return res;
}

/* Queues bytes of the opening: inside TLS once that is up. */
static int put(struct mcd_wire *w, const void *data, size_t size)
{
    if (w->tls != NULL && w->state >= REPEATED)
        return encrypt(w, data, size);
    return mcd_wire_buffer_add(&w->out, data, size);
}

static void count_failure(struct mcd_wire *w, uint32_t status)
{
    if (status == MCS_AUTH)
        w->stats->auth_failures++;
    else if (status == MCS_VERSION)
        w->stats->version_refused++;
    else if (status == MCS_PROTOCOL)
        w->stats->malformed++;
}

static void give_up(struct mcd_wire *w, uint32_t status, const char *text, bool tell)
{
    struct mcd_wire_refusal refusal;

    /* Once both sides have accepted each other the end of the connection says enough. In the
     * middle of TLS its own alert tells why. */
    if (tell && w->state != READY && w->state != TLS) {
        mcd_wire_refusal_make(&refusal, status, text);
        put(w, &refusal, sizeof(refusal));
    }
    flush(w);
    w->state = BROKEN;
    /* not close(): whoever polls the descriptor still has it */
    shutdown(w->fd, SHUT_RDWR);
}

static void fail(struct mcd_wire *w, uint32_t status, bool tell, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static void fail(struct mcd_wire *w, uint32_t status, bool tell, const char *format, ...)
{
    char text[MCD_WIRE_TEXT];
    va_list args;

    if (!alive(w))
        return;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    count_failure(w, status);
    give_up(w, status, text, tell);
    if (w->o.events.broken != NULL)
        w->o.events.broken(w->o.events.context, w, status, text);
}

static void fail_memory(struct mcd_wire *w)
{
    fail(w, MCS_LOCAL_RESOURCE, false, "out of memory for the control connection");
}

/* ---- opening ---- */

static void become_ready(struct mcd_wire *w)
{
    w->state = READY;
    if (w->o.events.ready != NULL)
        w->o.events.ready(w->o.events.context, w);
}

static void send_proof(struct mcd_wire *w)
{
    struct mcd_wire_proof proof = {.magic = MCD_WIRE_PROOF_MAGIC};

    if ((w->psk != NULL && mcd_wire_psk_prove(w->psk, proof.mac) != 0) ||
        put(w, &proof, sizeof(proof)) != 0)
        fail_memory(w);
}

static void take_greeting(struct mcd_wire *w)
{
    const struct mcd_wire_greeting *first = w->o.initiator ? &w->ours : &w->theirs;
    const struct mcd_wire_greeting *second = w->o.initiator ? &w->theirs : &w->ours;
    char text[MCD_WIRE_TEXT];
    int res = mcd_wire_greeting_check(&w->ours, &w->theirs, &w->version, text, sizeof(text));

    if (res != 0) {
        fail(w,
             res == -EPERM             ? MCS_AUTH
             : res == -EPROTONOSUPPORT ? MCS_VERSION
                                       : MCS_PROTOCOL,
             w->theirs.magic == MCD_WIRE_MAGIC, "%s", text);
        return;
    }
    if (w->ours.method == MCD_WIRE_TLS) {
        if (mcd_wire_tls_create(w->o.auth, w->o.initiator, &w->tls) != 0) {
            fail_memory(w);
            return;
        }
        w->state = TLS_FIRST;
        if (w->o.initiator && (mcd_wire_tls_handshake(w->tls, text, sizeof(text)) != 0 ||
                               mcd_wire_tls_take(w->tls, &w->out) != 0))
            fail_memory(w);
        return;
    }
    if (w->ours.method == MCD_WIRE_PSK &&
        mcd_wire_psk_create(w->o.auth, first, second, w->version, w->o.initiator, &w->psk) != 0) {
        fail_memory(w);
        return;
    }
    /* The initiator proves first: an acceptor says nothing about the secret to a stranger. */
    w->state = PROOF;
    if (w->o.initiator)
        send_proof(w);
}

static void take_proof(struct mcd_wire *w, const struct mcd_wire_proof *proof)
{
    static const uint8_t zeros[sizeof(proof->mac)];

    if (proof->magic != MCD_WIRE_PROOF_MAGIC || proof->reserved != 0) {
        fail(w, MCS_PROTOCOL, true, "a proof was due, %016llx %llx came",
             (unsigned long long)proof->magic, (unsigned long long)proof->reserved);
    } else if (w->psk != NULL && !mcd_wire_psk_verify(w->psk, proof->mac)) {
        fail(w, MCS_AUTH, true,
             "the proof of the shared secret is wrong: [peer] psk_file has to hold the same bytes "
             "on all agents");
    } else if (w->psk == NULL && memcmp(proof->mac, zeros, sizeof(zeros)) != 0) {
        fail(w, MCS_PROTOCOL, true, "a proof came where none was asked for");
    } else {
        if (!w->o.initiator)
            send_proof(w);
        if (alive(w))
            become_ready(w);
    }
}

static void take_refusal(struct mcd_wire *w, const struct mcd_wire_refusal *r)
{
    char text[sizeof(r->text) + 1];
    uint32_t status = mcd_wire_refusal_read(r, text, sizeof(text));

    fail(w, status, false, "the peer refuses: %s", text);
}

/* ---- in ---- */

static bool is_refusal(const struct mcd_wire *w)
{
    uint64_t magic = MCD_WIRE_REFUSAL_MAGIC;

    return mcd_wire_buffer_size(&w->in) >= sizeof(magic) &&
           memcmp(w->in.data + w->in.begin, &magic, sizeof(magic)) == 0;
}

/* Takes n bytes off the front of what has come; false if they are not there yet. */
static bool take(struct mcd_wire *w, void *to, size_t n)
{
    if (mcd_wire_buffer_size(&w->in) < n)
        return false;
    memcpy(to, w->in.data + w->in.begin, n);
    mcd_wire_buffer_drop(&w->in, n);
    return true;
}

/* One frame, if all of it is there. */
static bool take_frame(struct mcd_wire *w)
{
    size_t have = mcd_wire_buffer_size(&w->in), whole;
    const uint8_t *at = w->in.data + w->in.begin;
    struct mcd_wire_frame f;
    struct mcd_wire_header h;
    char text[MCD_WIRE_TEXT];

    if (have < sizeof(f))
        return false;
    memcpy(&f, at, sizeof(f));
    if (mcd_wire_frame_check(&f, w->version, w->sequence_in, &h, text, sizeof(text)) != 0) {
        fail(w, MCS_PROTOCOL, false, "%s", text);
        return false;
    }
    whole = sizeof(f) + f.length + (w->psk != NULL ? MCD_WIRE_MAC : 0);
    if (have < whole)
        return false;
    if (w->psk != NULL && !mcd_wire_psk_check(w->psk, w->sequence_in, at, sizeof(f) + f.length,
                                              at + sizeof(f) + f.length)) {
        fail(w, MCS_AUTH, false,
             "the authentication code of frame %llu is wrong: its bytes were changed on their way",
             (unsigned long long)w->sequence_in);
        return false;
    }
    w->sequence_in++;
    w->stats->frames_in++;
    w->partial_since = 0;
    if (w->o.events.message != NULL)
        w->o.events.message(w->o.events.context, w, &h, at + sizeof(f), f.length);
    if (alive(w))
        mcd_wire_buffer_drop(&w->in, whole);
    return alive(w);
}

/* One step with what has come; false: more bytes are needed, or it is over. */
static bool step(struct mcd_wire *w)
{
    struct mcd_wire_greeting repeated;
    struct mcd_wire_refusal refusal;
    struct mcd_wire_proof proof;
    const uint64_t magic = MCD_WIRE_MAGIC;
    size_t have = mcd_wire_buffer_size(&w->in);

    if (w->state > GREETING && w->state != TLS && w->sequence_in == 0 && is_refusal(w)) {
        if (take(w, &refusal, sizeof(refusal)))
            take_refusal(w, &refusal);
        return false;
    }
    switch (w->state) {
    case GREETING:
        /* who speaks something else is told so by the end of the connection, and early */
        if (have > 0 && memcmp(w->in.data + w->in.begin, &magic,
                               have < sizeof(magic) ? have : sizeof(magic)) != 0) {
            fail(w, MCS_PROTOCOL, false, "the other end does not speak mcshm's control protocol");
            return false;
        }
        if (!take(w, &w->theirs, sizeof(w->theirs)))
            return false;
        take_greeting(w);
        break;
    case PROOF:
        if (!take(w, &proof, sizeof(proof)))
            return false;
        take_proof(w, &proof);
        break;
    case TLS_FIRST:
        if (have == 0)
            return false;
        if (w->in.data[w->in.begin] == (MCD_WIRE_REFUSAL_MAGIC & 0xff)) {
            if (have >= sizeof(magic))
                fail(w, MCS_PROTOCOL, false, "neither TLS nor a refusal follows the greeting");
            return false;
        }
        w->state = TLS;
        if (mcd_wire_tls_feed(w->tls, w->in.data + w->in.begin, have) != 0)
            fail_memory(w);
        else
            mcd_wire_buffer_drop(&w->in, have);
        return false;
    case REPEATED:
        if (!take(w, &repeated, sizeof(repeated)))
            return false;
        if (memcmp(&repeated, &w->theirs, sizeof(repeated)) != 0)
            fail(w, MCS_AUTH, true,
                 "the greeting inside TLS differs from the one before it: it was changed on its "
                 "way");
        else
            become_ready(w);
        break;
    case READY:
        return take_frame(w);
    default:
        return false;
    }
    return alive(w);
}

static void process(struct mcd_wire *w)
{
    while (alive(w) && step(w))
        ;
}

/* Room for what comes next. A buffer grows only when it is full of one frame's bytes. */
static int make_room(struct mcd_wire *w)
{
    size_t have = mcd_wire_buffer_size(&w->in), target;

    if (w->state != READY)
        target = UNKNOWN_MAX;
    else
        target = have < CHUNK / 2 ? CHUNK : 2 * have < FRAME_ALL ? 2 * have : FRAME_ALL;
    return have < target ? mcd_wire_buffer_reserve(&w->in, target - have) : -EMSGSIZE;
}

/* What came from the socket goes through TLS into w->in. */
static void decrypt(struct mcd_wire *w)
{
    char text[MCD_WIRE_TEXT];
    int res;

    if (w->state == TLS) {
        res = mcd_wire_tls_handshake(w->tls, text, sizeof(text));
        if (mcd_wire_tls_take(w->tls, &w->out) != 0) {
            fail_memory(w);
            return;
        }
        if (res < 0)
            fail(w, MCS_AUTH, true, "%s", text);
        if (res <= 0)
            return;
        w->state = REPEATED;
        if (put(w, &w->ours, sizeof(w->ours)) != 0)
            fail_memory(w);
    }
    while (alive(w)) {
        if (make_room(w) != 0) {
            fail_memory(w);
            return;
        }
        res = mcd_wire_tls_read(w->tls, w->in.data + w->in.end, w->in.capacity - w->in.end, text,
                                sizeof(text));
        if (res == 0)
            break;
        if (res == -EPIPE) {
            fail(w, MCS_PEER_UNREACHABLE, false, "the peer closed the connection");
        } else if (res < 0) {
            fail(w, MCS_AUTH, false, "%s", text);
        } else {
            w->in.end += (size_t)res;
            process(w);
        }
    }
    /* answers of TLS itself, such as to a change of keys */
    if (alive(w) && mcd_wire_tls_take(w->tls, &w->out) != 0)
        fail_memory(w);
}

/* Uses what has come. */
static void advance(struct mcd_wire *w)
{
    if (w->tls == NULL || w->state < TLS)
        process(w);
    if (alive(w) && w->tls != NULL && w->state >= TLS)
        decrypt(w);
    if (!alive(w))
        return;
    if (w->state != READY ||
        (mcd_wire_buffer_size(&w->in) == 0 && (w->tls == NULL || !mcd_wire_tls_pending(w->tls))))
        w->partial_since = 0;
    else if (w->partial_since == 0)
        w->partial_since = w->now;
}

static void lost(struct mcd_wire *w, int error)
{
    bool opening = w->state != READY;

    if (error == 0)
        fail(w, MCS_PEER_UNREACHABLE, false, "the peer closed the connection%s",
             opening ? " while it was being opened" : "");
    else
        fail(w, MCS_PEER_UNREACHABLE, false, "the connection broke%s: %s",
             opening ? " while it was being opened" : "", strerror(error));
}

static void read_some(struct mcd_wire *w)
{
    uint8_t chunk[CHUNK];
    size_t budget = READ_MAX;

    while (alive(w) && budget > 0) {
        bool encrypted = w->tls != NULL && w->state >= TLS;
        uint8_t *to = chunk;
        size_t room = sizeof(chunk);
        ssize_t n;

        if (!encrypted) {
            if (make_room(w) != 0) {
                fail_memory(w);
                return;
            }
            to = w->in.data + w->in.end;
            room = w->in.capacity - w->in.end;
        }
        n = recv(w->fd, to, room < budget ? room : budget, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (n <= 0) {
            lost(w, n < 0 ? errno : 0);
            return;
        }
        budget -= (size_t)n;
        w->stats->bytes_in += (uint64_t)n;
        w->received = w->now;
        if (w->state != READY) {
            w->handshake_bytes += (uint64_t)n;
            if (w->handshake_bytes > HANDSHAKE_MAX) {
                fail(w, MCS_PROTOCOL, false,
                     "more than %u bytes came without an end of the opening", HANDSHAKE_MAX);
                return;
            }
        }
        if (!encrypted) {
            w->in.end += (size_t)n;
        } else if (mcd_wire_tls_feed(w->tls, chunk, (size_t)n) != 0) {
            fail_memory(w);
            return;
        }
        advance(w);
    }
}

static void check_connected(struct mcd_wire *w)
{
    struct sockaddr_storage peer;
    socklen_t size = sizeof(int);
    int error = 0;

    if (getsockopt(w->fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0)
        error = errno;
    if (error != 0) {
        fail(w, error == EADDRNOTAVAIL ? MCS_LOCAL_RESOURCE : MCS_PEER_UNREACHABLE, false,
             "cannot connect: %s", strerror(error));
        return;
    }
    size = sizeof(peer);
    if (getpeername(w->fd, (struct sockaddr *)&peer, &size) == 0)
        w->state = GREETING;
    else if (errno != ENOTCONN)
        lost(w, errno);
}

static void check_time(struct mcd_wire *w)
{
    if (w->state == READY) {
        if (w->partial_since != 0 && w->now >= w->partial_since + FRAME_NS)
            fail(w, MCS_TIMEOUT, false, "a frame that had begun did not end within %u s",
                 (unsigned)(FRAME_NS / 1000000000u));
    } else if (w->now >= w->created + MCD_WIRE_GREETING_NS) {
        if (w->state == CONNECTING) {
            fail(w, MCS_PEER_UNREACHABLE, false, "cannot connect: no answer within %u s",
                 (unsigned)(MCD_WIRE_GREETING_NS / 1000000000u));
        } else {
            w->stats->greeting_timeouts++;
            fail(w, MCS_TIMEOUT, true, "the connection was not opened within %u s",
                 (unsigned)(MCD_WIRE_GREETING_NS / 1000000000u));
        }
    }
}

/* ---- outside ---- */

int mcd_wire_create(const struct mcd_wire_options *o, int fd, const void *received,
                    size_t received_size, struct mcd_wire **out)
{
    struct mcd_wire *w = NULL;
    int one = 1, res = -EINVAL;

    if (o->auth == NULL || o->incarnation == 0 || received_size > UNKNOWN_MAX)
        goto out;
    w = calloc(1, sizeof(*w));
    if (w == NULL) {
        res = -ENOMEM;
        goto out;
    }
    w->o = *o;
    w->fd = fd;
    w->stats = o->stats != NULL ? o->stats : &w->no_stats;
    w->created = w->received = w->now = clock_now();
    w->ours = (struct mcd_wire_greeting){
        .magic = MCD_WIRE_MAGIC,
        .version_min = o->version_min != 0 ? o->version_min : MCD_WIRE_VERSION_MIN,
        .version_max = o->version_max != 0 ? o->version_max : MCD_WIRE_VERSION,
        .method = (uint8_t)o->auth->method,
        .role = o->initiator ? MCD_WIRE_INITIATOR : MCD_WIRE_ACCEPTOR,
        .incarnation = o->incarnation,
    };
    if (getrandom(w->ours.nonce, sizeof(w->ours.nonce), 0) != sizeof(w->ours.nonce)) {
        res = -EAGAIN;
        goto out;
    }
    if (mcd_wire_buffer_add(&w->out, &w->ours, sizeof(w->ours)) != 0 ||
        mcd_wire_buffer_add(&w->in, received, received_size) != 0) {
        res = -ENOMEM;
        goto out;
    }
    /* a small message must not wait for the answer to the one before; not TCP: no matter */
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    *out = w;
    w = NULL;
    fd = -1;
    res = 0;
out:
    if (w != NULL) {
        w->fd = -1;
        mcd_wire_destroy(w);
    }
    if (fd >= 0)
        close(fd);
    return res;
}

void mcd_wire_destroy(struct mcd_wire *w)
{
    if (w == NULL)
        return;
    if (w->fd >= 0)
        close(w->fd);
    w->fd = -1;
    w->destroyed = true;
    if (w->running)
        return;
    mcd_wire_psk_destroy(w->psk);
    mcd_wire_tls_destroy(w->tls);
    mcd_wire_buffer_free(&w->in);
    mcd_wire_buffer_free(&w->out);
    mcd_wire_buffer_free(&w->plain);
    free(w);
}

int mcd_wire_fd(const struct mcd_wire *w)
{
    return w->fd;
}

void mcd_wire_set_events(struct mcd_wire *w, const struct mcd_wire_events *events)
{
    w->o.events = *events;
}

uint32_t mcd_wire_wants(const struct mcd_wire *w)
{
    if (w->state == BROKEN)
        return 0;
    return EPOLLIN |
           (w->state == CONNECTING || mcd_wire_buffer_size(&w->out) > 0 ? (uint32_t)EPOLLOUT : 0u);
}

uint64_t mcd_wire_due(const struct mcd_wire *w)
{
    if (w->state == BROKEN)
        return UINT64_MAX;
    if (w->overflowed || w->write_error != 0)
        return 0;
    if (w->state != READY)
        return w->created + MCD_WIRE_GREETING_NS;
    return w->partial_since != 0 ? w->partial_since + FRAME_NS : UINT64_MAX;
}

void mcd_wire_run(struct mcd_wire *w, uint64_t now)
{
    if (w->running || w->state == BROKEN)
        return;
    w->running = true;
    w->now = now;
    if (w->overflowed)
        fail(w, MCS_LIMIT, false, "the peer does not read: more than %u bytes wait for it",
             MCD_WIRE_QUEUE_MAX);
    if (alive(w) && w->state == CONNECTING)
        check_connected(w);
    if (alive(w) && w->state > CONNECTING) {
        advance(w); /* what the acceptor had read before */
        if (alive(w))
            read_some(w);
        if (alive(w))
            flush(w);
        if (alive(w) && w->write_error != 0) {
            /* what the peer said before it closed tells more than the error does */
            read_some(w);
            lost(w, w->write_error);
        }
    }
    if (alive(w))
        check_time(w);
    w->running = false;
    if (w->destroyed)
        mcd_wire_destroy(w);
}

/* Writes header, payload and MAC to `at`, which has room for them. */
static int build(struct mcd_wire *w, const struct mcd_wire_header *h,
                 const ProtobufCMessage *message, size_t size, uint8_t *at)
{
    struct mcd_wire_frame f;

    mcd_wire_frame_make(&f, h, size, w->version, w->sequence_out);
    memcpy(at, &f, sizeof(f));
    if (size > 0)
        protobuf_c_message_pack(message, at + sizeof(f));
    if (w->psk == NULL)
        return 0;
    return mcd_wire_psk_seal(w->psk, w->sequence_out, at, sizeof(f) + size, at + sizeof(f) + size);
}

int mcd_wire_send(struct mcd_wire *w, const struct mcd_wire_header *h,
                  const ProtobufCMessage *message)
{
    struct mcd_wire_buffer *to = w->tls != NULL ? &w->plain : &w->out;
    size_t size, whole;
    int res;

    if (w->state != READY || w->destroyed)
        return -ENOTCONN;
    if (h->type == 0 || (h->reply && (h->id == 0 || h->status > UINT16_MAX)))
        return -EINVAL;
    if (w->overflowed)
        return -ENOBUFS;
    size = message != NULL ? protobuf_c_message_get_packed_size(message) : 0;
    if (size > MCD_WIRE_FRAME_MAX)
        return -EMSGSIZE;
    whole = sizeof(struct mcd_wire_frame) + size + (w->psk != NULL ? MCD_WIRE_MAC : 0);
    if (mcd_wire_buffer_size(&w->out) + whole > MCD_WIRE_QUEUE_MAX) {
        w->overflowed = true;
        w->stats->overflows++;
        /* wakes whoever polls the descriptor */
        shutdown(w->fd, SHUT_RDWR);
        return -ENOBUFS;
    }
    res = mcd_wire_buffer_reserve(to, whole);
    if (res != 0)
        return res;
    res = build(w, h, message, size, to->data + to->end);
    if (res != 0)
        return res;
    if (w->tls == NULL) {
        to->end += whole;
    } else {
        res = encrypt(w, to->data + to->end, whole);
        mcd_wire_buffer_drop(to, 0);
        if (res != 0) {
            /* nobody knows how much of the frame is on its way: the stream cannot go on */
            w->write_error = ENOMEM;
            return res;
        }
    }
    w->sequence_out++;
    w->stats->frames_out++;
    if (!w->running)
        flush(w);
    return 0;
}

void mcd_wire_refuse(struct mcd_wire *w, uint32_t status, const char *text)
{
    if (!alive(w) || w->state == READY)
        return;
    count_failure(w, status);
    give_up(w, status, text, true);
}

bool mcd_wire_is_ready(const struct mcd_wire *w)
{
    return w->state == READY;
}

bool mcd_wire_initiated(const struct mcd_wire *w)
{
    return w->o.initiator;
}

uint64_t mcd_wire_peer_incarnation(const struct mcd_wire *w)
{
    return w->theirs.incarnation;
}

uint16_t mcd_wire_version(const struct mcd_wire *w)
{
    return w->version;
}

uint64_t mcd_wire_last_received(const struct mcd_wire *w)
{
    return w->received;
}
