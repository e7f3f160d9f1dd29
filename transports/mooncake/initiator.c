/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests to stock Mooncake processes.  A connection carries one request; its answer is received
 * while the payload is still being sent, since who refuses a WRITE does not wait for its end.
 *
 *   READ       the rest of a canceled one is received into the staging buffer and dropped
 *   WRITE v2   the status is the proof that it was applied
 *   WRITE v1   has no answer.  The sending side is closed after the payload; the peer closes in turn when
 *              it has read all of it, and its kernel resets the connection when it closes earlier: so an
 *              end without a reset and with everything acknowledged is the proof. One connection a WRITE.
 *
 * A WRITE that ends in any other way after its first byte left comes back unsettled, for good: there is
 * no word by which the peer could be asked to forget it.
 */
#include <errno.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "internal.h"

/* More than this of a canceled READ is not waited for: its connection is closed. */
#define DRAIN_MAX (UINT64_C(4) << 20)

struct mct_mooncake_out {
    struct mct_io send, recv;
    struct mct_link *link;
    struct mct_mooncake_out *next;
    uint64_t id;
    int fd;
    bool v2;
    bool sending, receiving;
    bool direct; /* the receive under way writes to `local` */
    bool closing;
    bool canceled;   /* how the slice ends once its memory is quiet */
    int error;       /* why it closes */
    uint16_t status; /* what the slice ends with if not RAIL: the peer's word, or a fault */
    bool refused;    /* the peer's word: nothing of it lands */
    /* the request */
    bool active, write, answered;
    struct mct_slice *slice; /* NULL: it came back early */
    uint8_t *local;
    uint64_t length, sent, got; /* bytes of payload */
    size_t head;                /* bytes of the header that were sent */
    size_t frame_have;
    uint8_t frame[MCT_MOONCAKE_STATUS];
    uint8_t header[MCT_MOONCAKE_HEADER];
    struct iovec iov[2];
    struct msghdr msg;
    uint8_t staging[MCT_MOONCAKE_STAGE];
};

static struct mct_mooncake_out *of(struct mct_io *io, size_t offset)
{
    return (struct mct_mooncake_out *)(void *)((char *)io - offset);
}

static void count(uint64_t *counter, uint64_t n)
{
    mcs_count(counter, n); /* partner: readers of stats(), relaxed */
}

static void receive(struct mct_mooncake_out *o);
static void transmit(struct mct_mooncake_out *o);

/* *waits: the peer's kernel has all that it had room for, and answers when it is asked: it is the peer's
 * process that takes its time. */
static uint64_t acknowledged(const struct mct_mooncake_out *o, bool *waits)
{
    struct tcp_info info = {0};
    socklen_t size = sizeof(info);

    if (getsockopt(o->fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0)
        return 0;
    *waits = o->active && info.tcpi_unacked == 0 && info.tcpi_probes < 2;
    return info.tcpi_bytes_acked + info.tcpi_bytes_received;
}

/* ---- how requests and connections end ---------------------------------------------- */

/* The request is over for its slice: hands it to the engine, which may post the next one from there. */
static void end_slice(struct mct_mooncake_out *o, uint16_t status, int error, bool settled)
{
    struct mct *t = o->link->t;
    struct mct_slice *s = o->slice;

    o->slice = NULL;
    if (s == NULL)
        return;
    s->status = status;
    s->error = error;
    s->settled = settled;
    s->conn = o->head != 0 ? o->id : 0;
    s->moved = status == MCS_OK ? s->length : o->write ? 0 : o->got;
    s->link_state = NULL;
    t->env.host.done(t->env.host.context, s);
}

static bool settled(const struct mct_mooncake_out *o)
{
    return !o->write || o->head == 0 || o->refused;
}

static void closed(struct mct_mooncake_out *o)
{
    struct mct_link *link = o->link;
    struct mct *t = link->t;
    struct mct_mooncake_out **at = &link->conns;
    bool waits;

    link->progressed += acknowledged(o, &waits);
    close(o->fd);
    o->fd = -1;
    while (*at != o)
        at = &(*at)->next;
    *at = o->next;
    link->count--;
    count(&t->stats.conns, (uint64_t)-1);
    count(&t->stats.lost, 1);
    o->next = t->dead_out;
    t->dead_out = o;
    if (o->canceled)
        end_slice(o, MCS_CANCELED, 0, settled(o));
    else if (o->status != MCS_OK)
        end_slice(o, o->status, 0, settled(o));
    else
        end_slice(o, MCS_RAIL, o->error, settled(o));
    t->env.host.lost(t->env.host.context, link, o->id, o->error);
}

/* No more requests; what is under way comes back at once. */
static void begin_close(struct mct_mooncake_out *o, int error)
{
    static const struct linger reset = {.l_onoff = 1, .l_linger = 0};

    if (o->closing)
        return;
    o->closing = true;
    o->error = error;
    /* what the kernel still holds of a payload must not follow */
    if (o->active)
        setsockopt(o->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    shutdown(o->fd, SHUT_RDWR);
}

static void close_out(struct mct_mooncake_out *o, int error)
{
    begin_close(o, error);
    if (!o->sending && !o->receiving)
        closed(o);
}

/* The answer is complete, and no operation uses the slice's memory. */
static void complete(struct mct_mooncake_out *o)
{
    o->active = false;
    o->frame_have = 0;
    if (o->write && !o->v2)
        begin_close(o,
                    -ECONNRESET); /* before the engine hears of it: it must not post here again */
    end_slice(o, MCS_OK, 0, true);
    if (o->closing)
        close_out(o, o->error);
}

static void check(struct mct_mooncake_out *o)
{
    if (o->closing)
        close_out(o, o->error);
    else if (o->active && !o->sending && o->v2 && o->write && o->answered && o->sent == o->length)
        complete(o);
    else if (o->active && !o->sending && !o->write && o->got == o->length)
        complete(o);
    if (o->fd >= 0 && !o->closing && !o->receiving)
        receive(o);
}

/* ---- receiving --------------------------------------------------------------------- */

static void receive(struct mct_mooncake_out *o)
{
    struct mct *t = o->link->t;
    bool payload = o->active && !o->write && (o->answered || !o->v2) && o->got < o->length;
    uint64_t rest = payload ? o->length - o->got : 0;

    o->receiving = true;
    t->queued = true;
    o->direct = payload && o->slice != NULL;
    if (o->direct)
        mct_uring_recv(t->env.uring, &o->recv, o->fd, o->local + o->got,
                       rest < MCT_MOONCAKE_CHUNK ? rest : MCT_MOONCAKE_CHUNK, MSG_WAITALL);
    else /* at most what is ours: more would be an unasked answer, which is found out */
        mct_uring_recv(t->env.uring, &o->recv, o->fd, o->staging, sizeof(o->staging), 0);
}

/* False: not an answer to what was asked; the connection closes. */
static bool take(struct mct_mooncake_out *o, const uint8_t *p, size_t n)
{
    while (n > 0) {
        size_t k;

        if (!o->active)
            return false;
        if (o->v2 && !o->answered) {
            uint32_t code;

            k = MCT_MOONCAKE_STATUS - o->frame_have < n ? MCT_MOONCAKE_STATUS - o->frame_have : n;
            memcpy(o->frame + o->frame_have, p, k);
            o->frame_have += k;
            if (o->frame_have == MCT_MOONCAKE_STATUS) {
                if (!mct_mooncake_status_unpack(o->frame, &code))
                    return false;
                if (code != MCT_MOONCAKE_OK) {
                    o->refused = code == MCT_MOONCAKE_REJECTED;
                    o->status = o->refused ? MCS_BAD_RANGE : MCS_PROTOCOL;
                    return true; /* the peer closes; nothing that follows means anything */
                }
                o->answered = true;
            }
        } else if (!o->write && o->got < o->length) {
            k = o->length - o->got < n ? (size_t)(o->length - o->got) : n;
            if (o->slice != NULL)
                mct_mooncake_payload(o->local + o->got, p, k);
            o->got += k;
            count(&o->link->t->stats.received_bytes, k);
        } else {
            return false;
        }
        p += k;
        n -= k;
    }
    return true;
}

/* The peer has read everything that was sent: it closed in order, and its kernel acknowledged all but
 * perhaps the end itself. */
static bool consumed(int fd)
{
    int unacked = 0, error = 0;
    socklen_t size = sizeof(error);

    return ioctl(fd, SIOCOUTQ, &unacked) == 0 && unacked <= 1 &&
           getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
}

static void received(struct mct_io *io, int res, uint32_t flags)
{
    struct mct_mooncake_out *o = of(io, offsetof(struct mct_mooncake_out, recv));

    (void)flags;
    o->receiving = false;
    if (o->direct) {
        o->direct = false;
        if (res > 0) {
            o->got += (uint64_t)res;
            count(&o->link->t->stats.received_bytes, (uint64_t)res);
        }
        if (o->canceled && !o->closing) {
            o->canceled = false;
            end_slice(o, MCS_CANCELED, 0, true);
        }
    } else if (res > 0 && !o->closing && !take(o, o->staging, (size_t)res)) {
        count(&o->link->t->stats.protocol_errors, 1);
        close_out(o, -EPROTO);
        return;
    }
    if (o->status != MCS_OK) {
        close_out(o, -ECONNRESET);
    } else if (res == 0 && o->active && o->write && !o->v2 && o->sent == o->length && !o->sending &&
               !o->closing && consumed(o->fd)) {
        complete(o);
    } else if (res == -EFAULT) {
        o->status = MCS_MEMORY_FAULT;
        close_out(o, -ECONNRESET);
    } else if (res == 0) {
        close_out(o, -ECONNRESET);
    } else if (res < 0 && res != -ECANCELED && res != -EINTR && res != -EAGAIN) {
        close_out(o, res);
    } else {
        check(o);
    }
}

/* ---- sending ----------------------------------------------------------------------- */

static void transmit(struct mct_mooncake_out *o)
{
    struct mct *t = o->link->t;
    uint64_t rest = o->write ? o->length - o->sent : 0;
    size_t n = 0;

    if (o->head < sizeof(o->header))
        o->iov[n++] = (struct iovec){o->header + o->head, sizeof(o->header) - o->head};
    if (rest != 0)
        o->iov[n++] = (struct iovec){o->local + o->sent,
                                     rest < MCT_MOONCAKE_CHUNK ? rest : MCT_MOONCAKE_CHUNK};
    o->msg = (struct msghdr){.msg_iov = o->iov, .msg_iovlen = n};
    o->sending = true;
    t->queued = true;
    mct_uring_sendmsg(t->env.uring, &o->send, o->fd, &o->msg, MSG_NOSIGNAL | MSG_WAITALL);
}

static void transmitted(struct mct_io *io, int res, uint32_t flags)
{
    struct mct_mooncake_out *o = of(io, offsetof(struct mct_mooncake_out, send));

    (void)flags;
    o->sending = false;
    if (res > 0) {
        size_t head = sizeof(o->header) - o->head;

        if (head > (size_t)res)
            head = (size_t)res;
        o->head += head;
        o->sent += (uint64_t)res - head;
        count(&o->link->t->stats.sent_bytes, (uint64_t)res - head);
    }
    if (o->closing) {
        check(o);
    } else if (res == -EFAULT) {
        o->status = MCS_MEMORY_FAULT;
        close_out(o, -ECONNRESET);
    } else if (res < 0 && res != -EINTR && res != -EAGAIN) {
        /* who refuses closes, too: the reason is in what can still be received */
        if (!o->receiving || (res != -EPIPE && res != -ECONNRESET))
            close_out(o, res);
    } else if (o->head < sizeof(o->header) || (o->write && o->sent < o->length)) {
        transmit(o);
    } else {
        if (o->write && !o->v2)
            shutdown(o->fd, SHUT_WR);
        check(o);
    }
}

unsigned mct_mooncake_post(struct mct_link *link, struct mct_slice *const *slices, unsigned n)
{
    struct mct_mooncake_out *o = link->conns;
    unsigned i;

    for (i = 0; i < n; i++) {
        struct mct_slice *s = slices[i];
        struct mct_mooncake_request r = {
            .size = s->length, .address = s->remote_address, .write = s->op == MCT_WRITE};

        /* notifications travel on another port, from process to process; and no socket reaches a GPU */
        if (s->op == MCT_NOTIFY || s->gpu) {
            s->status = MCS_NOT_SUPPORTED;
            s->error = 0;
            s->settled = true;
            s->conn = s->moved = 0;
            mct_mooncake_give_back(link->t, s);
            link->t->queued = true;
            continue;
        }
        while (o != NULL && (o->active || o->closing))
            o = o->next;
        if (o == NULL)
            break;
        o->active = true;
        o->answered = o->canceled = o->refused = false;
        o->write = r.write;
        o->slice = s;
        o->local = s->local;
        o->length = s->length;
        o->sent = o->got = 0;
        o->head = o->frame_have = 0;
        s->link_state = o;
        r.v2 = o->v2;
        mct_mooncake_request_pack(o->header, &r);
        transmit(o);
    }
    return i;
}

/* ---- ending early ------------------------------------------------------------------ */

static void cancel(struct mct_mooncake_out *o)
{
    struct mct *t = o->link->t;
    struct mct_slice *s = o->slice;

    if (o->closing || o->canceled)
        return; /* on its way */
    if (o->write ? o->sending || o->sent < o->length : o->length - o->got > DRAIN_MAX) {
        o->canceled = true;
        close_out(o, -ECANCELED);
    } else if (o->direct) {
        o->canceled = true; /* comes back when nothing writes to its memory */
        mct_uring_cancel(t->env.uring, &o->recv);
        t->queued = true;
    } else {
        o->slice = NULL;
        s->status = MCS_CANCELED;
        s->error = 0;
        s->settled = !o->write;
        s->conn = o->id;
        s->moved = o->got;
        mct_mooncake_give_back(t, s);
    }
}

void mct_mooncake_cancel(struct mct_link *link, struct mct_slice *slice)
{
    struct mct_mooncake_out *o = slice->link_state;

    (void)link;
    if (o != NULL && o->slice == slice)
        cancel(o);
}

bool mct_mooncake_out_quiesce(struct mct *t, uintptr_t base, uint64_t length)
{
    bool quiet = true;

    for (struct mct_link *link = t->links; link != NULL; link = link->next)
        for (struct mct_mooncake_out *o = link->conns, *next; o != NULL; o = next) {
            next = o->next;
            if (o->slice == NULL || !mct_mooncake_overlaps(o->local, o->length, base, length) ||
                (o->write && !o->sending && o->sent == o->length))
                continue; /* or its payload has left this memory for good */
            cancel(o);
            /* a closed connection is on the list of the dead by now, its slice gone back */
            quiet &= o->slice == NULL;
        }
    return quiet;
}

void mct_mooncake_abort(struct mct_link *link, int error)
{
    struct mct_mooncake_out *next;

    for (struct mct_mooncake_out *o = link->conns; o != NULL; o = next) {
        next = o->next;
        close_out(o, error);
    }
}

/* ---- links ------------------------------------------------------------------------- */

int mct_mooncake_connect(struct mct *t, void *owner, struct mct_link **out)
{
    struct mct_link *link = calloc(1, sizeof(*link));

    if (link == NULL)
        return -ENOMEM;
    link->t = t;
    link->owner = owner;
    link->next = t->links;
    if (t->links != NULL)
        t->links->prev = link;
    t->links = link;
    *out = link;
    return 0;
}

void mct_mooncake_disconnect(struct mct_link *link)
{
    struct mct *t = link->t;

    /* the kernel gives operations on sockets that were shut down back at once: no peer is waited for */
    mct_mooncake_abort(link, -ECANCELED);
    while (link->conns != NULL)
        mct_uring_turn(t->env.uring);
    mct_mooncake_hand_back(t);
    if (link->prev != NULL)
        link->prev->next = link->next;
    else
        t->links = link->next;
    if (link->next != NULL)
        link->next->prev = link->prev;
    free(link);
}

int mct_mooncake_adopt(struct mct_link *link, const struct mct_conn *conn)
{
    struct mct *t = link->t;
    struct mct_mooncake_out *o = calloc(1, sizeof(*o));

    if (o == NULL) {
        close(conn->fd);
        return -ENOMEM;
    }
    mct_mooncake_socket(conn->fd);
    o->send.done = transmitted;
    o->recv.done = received;
    o->link = link;
    o->fd = conn->fd;
    o->id = conn->id;
    o->v2 = (conn->features & MCT_MOONCAKE_FEATURE_V2) != 0;
    o->next = link->conns;
    link->conns = o;
    link->count++;
    count(&t->stats.conns, 1);
    receive(o);
    return 0;
}

/* A process that is slow does not mean that the path is dead. The protocol has no ping, but the kernel has: its
 * keepalive and its looks at a closed window. While these are answered the path counts as alive. */
uint64_t mct_mooncake_progress(struct mct_link *link)
{
    uint64_t n = 0;

    for (const struct mct_mooncake_out *o = link->conns; o != NULL; o = o->next) {
        bool waits = false;

        n += acknowledged(o, &waits);
        link->progressed += waits;
    }
    return n + link->progressed;
}

void mct_mooncake_out_free_dead(struct mct *t)
{
    struct mct_mooncake_out *o, *next;

    for (o = t->dead_out; o != NULL; o = next) {
        next = o->next;
        free(o);
    }
    t->dead_out = NULL;
}
