/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of stock Mooncake processes.  A READ is sent from the extent, a WRITE received into it;
 * small payloads take the way through the staging buffer, since they come together with their header.
 *
 * The range is looked up as a whole when the header is there and again for each further chunk:
 * between two turns it may have been revoked.  Then the connection ends, with a status where one is
 * possible: the protocol has no other word.  A refused WRITE's payload is not drained.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "internal.h"

enum phase {
    HEADER, /* waits for a request, or for the rest of its header */
    READING,
    WRITING,
    ANSWERING, /* a WRITE's status is on its way */
    REFUSING   /* the last word */
};

struct mct_mooncake_in {
    struct mct_io send, recv;
    struct mct *t;
    struct mct_mooncake_in *prev, *next;
    void *visitor;
    uint64_t id;
    int fd;
    enum phase phase;
    bool sending, receiving, direct, closing, revoked;
    bool reset; /* the peer shall see a reset, not an end */
    int error;
    const char *why;
    struct mct_mooncake_request request;
    uint64_t done;  /* bytes of payload */
    size_t status;  /* bytes of the status that are still to be sent */
    uint8_t *chunk; /* memory that the operation under way uses, and how much of it */
    size_t chunk_size;
    uint64_t since; /* ticks: first byte of an unfinished header; 0: none */
    size_t have;    /* staged bytes that nobody has looked at */
    uint8_t frame[MCT_MOONCAKE_STATUS];
    struct iovec iov[2];
    struct msghdr msg;
    uint8_t staging[MCT_MOONCAKE_STAGE];
};

static struct mct_mooncake_in *of(struct mct_io *io, size_t offset)
{
    return (struct mct_mooncake_in *)(void *)((char *)io - offset);
}

static void count(uint64_t *counter, uint64_t n)
{
    mcs_count(counter, n); /* partner: readers of stats(), relaxed */
}

static void step(struct mct_mooncake_in *c);

static void close_in(struct mct_mooncake_in *c, int error, const char *why)
{
    struct mct *t = c->t;

    if (!c->closing) {
        c->closing = true;
        c->error = error;
        c->why = why;
        /* what is under way gives up when the socket is shut down; one without needs only the close */
        if (!c->reset || c->sending || c->receiving)
            shutdown(c->fd, SHUT_RDWR);
    }
    if (c->sending || c->receiving)
        return;
    close(c->fd);
    c->fd = -1;
    if (c->prev != NULL)
        c->prev->next = c->next;
    else
        t->incoming = c->next;
    if (c->next != NULL)
        c->next->prev = c->prev;
    count(&t->stats.inbound, (uint64_t)-1);
    if (c->error != 0)
        count(&t->stats.lost, 1);
    c->next = t->dead_in;
    t->dead_in = c;
    t->env.host.left(t->env.host.context, c->visitor, c->id, c->error, c->why);
}

/* ---- input and output -------------------------------------------------------------- */

static void receive(struct mct_mooncake_in *c)
{
    c->direct = false;
    c->receiving = true;
    c->t->queued = true;
    mct_uring_recv(c->t->env.uring, &c->recv, c->fd, c->staging + c->have,
                   sizeof(c->staging) - c->have, 0);
}

/* Where [done, done + length) of the request is now. */
static uint16_t look_up(struct mct_mooncake_in *c, uint64_t length, void **pointer)
{
    struct mct_request r = {
        .op = c->request.write ? MCT_WRITE : MCT_READ,
        .address = c->request.address + c->done,
        .length = length,
    };

    return c->t->env.host.resolve(c->t->env.host.context, c->visitor, &r, pointer);
}

/* What is left of the status, then a chunk (none: chunk_size 0). */
static void transmit(struct mct_mooncake_in *c)
{
    size_t n = 0;

    if (c->status != 0)
        c->iov[n++] = (struct iovec){c->frame + sizeof(c->frame) - c->status, c->status};
    if (c->chunk_size != 0)
        c->iov[n++] = (struct iovec){c->chunk, c->chunk_size};
    c->msg = (struct msghdr){.msg_iov = c->iov, .msg_iovlen = n};
    c->sending = true;
    c->t->queued = true;
    mct_uring_sendmsg(c->t->env.uring, &c->send, c->fd, &c->msg, MSG_NOSIGNAL | MSG_WAITALL);
}

static void say(struct mct_mooncake_in *c, uint32_t code)
{
    mct_mooncake_status_pack(c->frame, code);
    c->status = sizeof(c->frame);
}

static void refuse(struct mct_mooncake_in *c, const char *why)
{
    static const struct linger reset = {.l_onoff = 1, .l_linger = 0};

    count(&c->t->stats.refused, 1);
    c->why = why;
    c->chunk_size = 0;
    /* a READ whose status is out has promised its bytes; version 1 has no status at all */
    if (!c->request.v2 || (c->phase == READING && (c->done != 0 || c->status == 0))) {
        /* not an end in order, which could be taken for a WRITE's success */
        setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
        c->reset = true;
        close_in(c, 0, why);
        return;
    }
    c->phase = REFUSING;
    say(c, MCT_MOONCAKE_REJECTED);
    transmit(c);
}

static size_t next_chunk(const struct mct_mooncake_in *c)
{
    uint64_t rest = c->request.size - c->done;

    return rest < MCT_MOONCAKE_CHUNK ? (size_t)rest : MCT_MOONCAKE_CHUNK;
}

static void use_staged(struct mct_mooncake_in *c, size_t n)
{
    c->have -= n;
    memmove(c->staging, c->staging + n, c->have);
}

/* ---- a request's steps; each returns true when the next can be taken at once --------- */

static bool begin(struct mct_mooncake_in *c)
{
    void *pointer;

    if (c->have < MCT_MOONCAKE_HEADER) {
        if (c->have != 0 && c->since == 0) {
            c->since = mcs_ticks();
            if (c->t->slow_at == 0)
                c->t->slow_at = c->since + MCT_MOONCAKE_HEADER_S * c->t->env.tick_hz;
        }
        receive(c);
        return false;
    }
    c->since = 0;
    mct_mooncake_request_unpack(&c->request, c->staging);
    use_staged(c, MCT_MOONCAKE_HEADER);
    c->done = 0;
    c->status = 0;
    c->chunk_size = 0;
    if (c->request.size == 0 || c->request.address + c->request.size < c->request.address ||
        look_up(c, c->request.size, &pointer) != MCS_OK) {
        refuse(c, "it asked for memory that is not public, or without the right to it");
        return false;
    }
    c->phase = c->request.write ? WRITING : READING;
    if (!c->request.write && c->request.v2)
        say(c, MCT_MOONCAKE_OK);
    return true;
}

static bool read_on(struct mct_mooncake_in *c)
{
    void *pointer;

    if (c->done == c->request.size) {
        count(&c->t->stats.served, 1);
        c->phase = HEADER;
        return true;
    }
    c->chunk_size = next_chunk(c);
    if (look_up(c, c->chunk_size, &pointer) != MCS_OK) {
        refuse(c, "the memory it was reading was revoked");
        return false;
    }
    c->chunk = pointer;
    transmit(c);
    return false;
}

static bool write_on(struct mct_mooncake_in *c)
{
    size_t n = next_chunk(c);
    void *pointer;

    if (n == 0) {
        c->phase = HEADER;
        count(&c->t->stats.served, 1);
        if (!c->request.v2)
            return true;
        c->phase = ANSWERING;
        c->chunk_size = 0;
        say(c, MCT_MOONCAKE_OK);
        transmit(c);
        return false;
    }
    if (c->have != 0 && n > c->have)
        n = c->have;
    if (look_up(c, n, &pointer) != MCS_OK) {
        refuse(c, "the memory it was writing was revoked");
        return false;
    }
    if (c->have != 0) {
        mct_mooncake_payload(pointer, c->staging, n);
        use_staged(c, n);
        c->done += n;
        count(&c->t->stats.received_bytes, n);
        return true;
    }
    c->chunk = pointer;
    c->chunk_size = n;
    c->direct = c->receiving = true;
    c->t->queued = true;
    mct_uring_recv(c->t->env.uring, &c->recv, c->fd, pointer, n, MSG_WAITALL);
    return false;
}

static void step(struct mct_mooncake_in *c)
{
    bool on = !c->closing && !c->sending && !c->receiving;

    while (on)
        switch (c->phase) {
        case HEADER:
            on = begin(c);
            break;
        case READING:
            on = read_on(c);
            break;
        case WRITING:
            on = write_on(c);
            break;
        case ANSWERING:
            c->phase = HEADER;
            break;
        case REFUSING:
            close_in(c, 0, c->why);
            on = false;
            break;
        }
}

/* ---- completions ------------------------------------------------------------------- */

static void received(struct mct_io *io, int res, uint32_t flags)
{
    struct mct_mooncake_in *c = of(io, offsetof(struct mct_mooncake_in, recv));
    bool direct = c->direct;

    (void)flags;
    c->receiving = c->direct = false;
    if (res > 0 && direct) {
        c->done += (uint64_t)res;
        count(&c->t->stats.received_bytes, (uint64_t)res);
    } else if (res > 0) {
        c->have += (size_t)res;
    }
    if (c->closing)
        close_in(c, 0, NULL);
    else if (c->revoked)
        refuse(c, "the memory it was writing was revoked");
    else if (res == 0)
        close_in(c, 0,
                 c->phase == HEADER && c->have == 0 ? "it closed"
                                                    : "it closed in the middle of a request");
    else if (res == -EFAULT)
        refuse(c, "the memory it was writing was taken away");
    else if (res < 0 && res != -EINTR && res != -EAGAIN && res != -ECANCELED)
        close_in(c, res, "the connection was lost");
    else
        step(c);
}

static void transmitted(struct mct_io *io, int res, uint32_t flags)
{
    struct mct_mooncake_in *c = of(io, offsetof(struct mct_mooncake_in, send));

    (void)flags;
    c->sending = false;
    if (res > 0) {
        size_t status = c->status < (size_t)res ? c->status : (size_t)res;

        c->status -= status;
        if (c->phase == READING) {
            c->done += (uint64_t)res - status;
            count(&c->t->stats.sent_bytes, (uint64_t)res - status);
        }
    }
    if (c->closing)
        close_in(c, 0, NULL);
    else if (c->revoked)
        close_in(c, 0, "the memory it was reading was revoked");
    else if (res == -EFAULT)
        close_in(c, 0, "the memory it was reading was taken away");
    else if (res < 0 && res != -EINTR && res != -EAGAIN)
        close_in(c, res, "the connection was lost");
    else if (c->phase != READING && c->status != 0)
        transmit(c);
    else
        step(c);
}

/* ---- connections ------------------------------------------------------------------- */

int mct_mooncake_serve(struct mct *t, const struct mct_conn *conn, void *visitor)
{
    static const int unread_ms = 60000;
    struct mct_mooncake_in *c = calloc(1, sizeof(*c));

    if (c == NULL) {
        close(conn->fd);
        return -ENOMEM;
    }
    mct_mooncake_socket(conn->fd);
    /* who asked and then does not take his bytes holds memory's revocation up no longer than a turn,
     * but a connection for ever */
    setsockopt(conn->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unread_ms, sizeof(unread_ms));
    c->send.done = transmitted;
    c->recv.done = received;
    c->t = t;
    c->visitor = visitor;
    c->fd = conn->fd;
    c->id = conn->id;
    c->next = t->incoming;
    if (t->incoming != NULL)
        t->incoming->prev = c;
    t->incoming = c;
    count(&t->stats.inbound, 1);
    step(c);
    return 0;
}

/* visitor NULL: everybody's. */
int mct_mooncake_dismiss(struct mct *t, void *visitor)
{
    struct mct_mooncake_in *next;
    int res = 0;

    for (struct mct_mooncake_in *c = t->incoming; c != NULL; c = next) {
        next = c->next;
        if (visitor != NULL && c->visitor != visitor)
            continue;
        close_in(c, 0, "this agent has no more to do with it");
        if (c->fd >= 0)
            res = -EINPROGRESS;
    }
    return res;
}

bool mct_mooncake_in_quiesce(struct mct *t, uintptr_t base, uint64_t length)
{
    bool quiet = true;

    for (struct mct_mooncake_in *c = t->incoming; c != NULL; c = c->next) {
        bool reading = c->sending && c->chunk_size != 0;

        if ((!reading && !(c->receiving && c->direct)) ||
            !mct_mooncake_overlaps(c->chunk, c->chunk_size, base, length))
            continue;
        quiet = false;
        if (c->revoked || c->closing)
            continue;
        c->revoked = true;
        mct_uring_cancel(t->env.uring, reading ? &c->send : &c->recv);
        t->queued = true;
    }
    return quiet;
}

void mct_mooncake_in_slow(struct mct *t, uint64_t now)
{
    uint64_t limit = MCT_MOONCAKE_HEADER_S * t->env.tick_hz;
    struct mct_mooncake_in *next;

    t->slow_at = 0;
    for (struct mct_mooncake_in *c = t->incoming; c != NULL; c = next) {
        next = c->next;
        if (c->since == 0 || c->closing)
            continue;
        if (now - c->since >= limit) {
            count(&t->stats.protocol_errors, 1);
            close_in(c, -ETIMEDOUT, "its request's header did not come to its end within 10 s");
        } else if (t->slow_at == 0 || c->since + limit < t->slow_at) {
            t->slow_at = c->since + limit;
        }
    }
}

void mct_mooncake_in_free_dead(struct mct *t)
{
    struct mct_mooncake_in *c, *next;

    for (c = t->dead_in; c != NULL; c = next) {
        next = c->next;
        free(c);
    }
    t->dead_in = NULL;
}
