/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handshake port: one frame in, one frame out, then the client closes.  Connections are served
 * side by side, in bounded number: when there are too many the oldest goes, so that nobody can keep the
 * port to himself by staying.
 *
 *   READING -> WRITING -> CLOSING       what a connection has to do in LIMIT_NS
 *      +-> DELIVERING -+                a notification, while an engine puts it into inboxes
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "log.h"
#include "mooncake_frame.h"
#include "mooncake_internal.h"
#include "task.h"

#define HANDS_MAX 256u
#define LIMIT_NS (5000 * MCD_MOONCAKE_MS) /* as long as stock itself waits */
#define SEGMENTS_MAX 256u                 /* that one notification goes to */

enum phase { READING, DELIVERING, WRITING, CLOSING };

/* A notification on its way into the inboxes of public segments' owners. */
struct delivery {
    struct mcd_command command;
    uint64_t source; /* this agent's incarnation: stock processes have none */
    char *name, *message;
    size_t name_length, message_length;
    unsigned n, delivered;
    struct mcd_segment *to[SEGMENTS_MAX];
};

struct mcd_mooncake_hand {
    struct mcd_watch watch;
    struct mcd_alarm limit;
    struct mcd_mooncake *m;
    struct mcd_mooncake_hand *next, *prev; /* prev: the one that came after */
    int fd;
    enum phase phase;
    struct mcd_mooncake_frame frame;
    uint8_t *reply;
    size_t reply_size, sent;
    struct delivery *delivery;
};

static void delivery_free(struct delivery *d)
{
    for (unsigned i = 0; i < d->n; i++)
        mcd_segment_put(d->to[i]);
    free(d->name);
    free(d->message);
    free(d);
}

static void hand_free(struct mcd_mooncake_hand *h)
{
    struct mcd_mooncake *m = h->m;

    mcd_alarm_clear(m->agent, &h->limit);
    mcd_watch_remove(m->agent, &h->watch);
    close(h->fd);
    if (h->prev != NULL)
        h->prev->next = h->next;
    else
        m->hands = h->next;
    if (h->next != NULL)
        h->next->prev = h->prev;
    m->counters.handshakes_open--;
    mcd_mooncake_frame_free(&h->frame);
    free(h->reply);
    free(h);
}

/* ---- answers ----------------------------------------------------------------------- */

static void write_on(struct mcd_mooncake_hand *h)
{
    while (h->sent < h->reply_size) {
        ssize_t n =
            send(h->fd, h->reply + h->sent, h->reply_size - h->sent, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN) {
            if (mcd_watch_change(h->m->agent, &h->watch, EPOLLOUT) != 0)
                hand_free(h);
            return;
        }
        if (n < 0) {
            hand_free(h);
            return;
        }
        h->sent += (size_t)n;
    }
    h->phase = CLOSING; /* the client closes first: a reset could overtake the answer */
    shutdown(h->fd, SHUT_WR);
    if (mcd_watch_change(h->m->agent, &h->watch, EPOLLIN) != 0)
        hand_free(h);
}

static void answer(struct mcd_mooncake_hand *h, const char *json, size_t size)
{
    if (mcd_mooncake_frame_make(h->frame.type, h->frame.typed, json, size, &h->reply,
                                &h->reply_size) != 0) {
        hand_free(h);
        return;
    }
    h->phase = WRITING;
    write_on(h);
}

#define ANSWER(h, text) answer(h, text "\n", sizeof(text "\n") - 1)

static void bad(struct mcd_mooncake_hand *h)
{
    h->m->counters.bad_frames++;
    hand_free(h); /* as stock does, without a word */
}

/* ---- notifications ----------------------------------------------------------------- */

/* Engine: inboxes are theirs. */
static bool deliver(struct mcd_engine *g, struct mcd_command *c)
{
    struct delivery *d = c->context;

    for (unsigned i = 0; i < d->n; i++) {
        /* partner: the release in session.c when the owner ends; its region outlives this turn */
        struct mcd_session *owner = mcs_load_acquire(&d->to[i]->owner);

        if (owner != NULL &&
            mcd_inbox_deliver(g, owner, d->source, 0, d->name, (uint32_t)d->name_length, d->message,
                              (uint32_t)d->message_length) == 0)
            d->delivered++;
    }
    return true;
}

/* The segment of that name if it is public, else all that are. */
static void choose(struct mcd_agent *a, struct delivery *d)
{
    bool named = false;

    for (struct mcd_segment *s = a->segments; s != NULL && !named; s = s->next)
        named = s->remote == NULL && s->owner != NULL && (s->flags & MCS_SEGMENT_PUBLIC) != 0 &&
                strcmp(s->name, d->name) == 0;
    for (struct mcd_segment *s = a->segments; s != NULL && d->n < SEGMENTS_MAX; s = s->next)
        if (s->remote == NULL && s->owner != NULL && (s->flags & MCS_SEGMENT_PUBLIC) != 0 &&
            (!named || strcmp(s->name, d->name) == 0))
            d->to[d->n++] = mcd_segment_get(s);
}

static void notified(struct mcd_mooncake_hand *h, bool delivered)
{
    if (delivered) {
        h->m->counters.notifies++;
        ANSWER(h, "{\"name\":\"\",\"notify_msg\":\"success\"}");
    } else {
        h->m->counters.notifies_refused++;
        ANSWER(h, "{\"name\":\"\",\"notify_msg\":\"\"}");
    }
}

static void notify(struct mcd_mooncake_hand *h)
{
    struct mcd_agent *a = h->m->agent;
    struct delivery *d = calloc(1, sizeof(*d));

    if (d == NULL ||
        mcd_mooncake_parse_notify(h->frame.json, h->frame.json_size, &d->name, &d->message) != 0) {
        free(d);
        bad(h);
        return;
    }
    d->source = a->incarnation;
    d->name_length = strlen(d->name);
    d->message_length = strlen(d->message);
    if (d->name_length <= MCS_NOTIFY_NAME_MAX && d->message_length <= MCS_NOTIFY_MESSAGE_MAX)
        choose(a, d);
    if (d->n == 0) {
        delivery_free(d);
        notified(h, false);
        return;
    }
    h->phase = DELIVERING;
    h->delivery = d;
    mcd_watch_remove(a, &h->watch); /* who hangs up meanwhile is found out when it is answered */
    mcd_alarm_clear(a, &h->limit);
    mcd_engine_call(a->engines[0], &d->command, deliver, d);
}

/* Puts a connection that waited for an engine back to work. */
static void delivered(struct mcd_mooncake_hand *h)
{
    struct mcd_agent *a = h->m->agent;
    struct delivery *d = h->delivery;
    bool any = d->delivered != 0;

    delivery_free(d);
    h->delivery = NULL;
    if (mcd_watch_add(a, &h->watch, h->fd, EPOLLOUT) != 0) {
        hand_free(h);
        return;
    }
    mcd_alarm_set(a, &h->limit, mcd_now_ns() + LIMIT_NS);
    notified(h, any);
}

void mcd_mooncake_hands_poll(struct mcd_mooncake *m)
{
    struct mcd_mooncake_hand *next;

    for (struct mcd_mooncake_hand *h = m->hands; h != NULL; h = next) {
        next = h->next;
        if (h->phase == DELIVERING &&
            mcs_load_acquire(&h->delivery->command.done) != 0) /* partner: the engine's release */
            delivered(h);
    }
}

/* ---- requests ---------------------------------------------------------------------- */

static void serve(struct mcd_mooncake_hand *h)
{
    struct mcd_mooncake_counters *n = &h->m->counters;
    const char *text;
    size_t size;

    switch (h->frame.type) {
    case MCD_MOONCAKE_METADATA: /* what it says of itself is not needed */
        text = mcd_mooncake_text(h->m, &size);
        n->metadata++;
        if (text != NULL)
            answer(h, text, size);
        else
            hand_free(h);
        break;
    case MCD_MOONCAKE_NOTIFY:
        notify(h);
        break;
    case MCD_MOONCAKE_PROBE:
        n->probes++;
        ANSWER(h, "{\"status\":\"success\"}");
        break;
    default: /* RDMA's; a process that has only TCP answers so */
        n->connections++;
        ANSWER(h, "{\"local_gid\":\"\",\"local_lid\":0,\"local_nic_path\":\"\",\"payload\":\"\","
                  "\"peer_nic_path\":\"\",\"qp_num\":[],\"reply_msg\":\"\"}");
        break;
    }
}

/* The request's text is not kept: nothing but a notification's means anything. It has to look like JSON. */
static bool looks_like_json(const struct mcd_mooncake_frame *f)
{
    size_t first = 0, last = f->json_size;

    while (first < last && strchr(" \t\r\n", f->json[first]) != NULL && f->json[first] != '\0')
        first++;
    while (last > first && strchr(" \t\r\n", f->json[last - 1]) != NULL &&
           f->json[last - 1] != '\0')
        last--;
    return last - first >= 2 && f->json[first] == '{' && f->json[last - 1] == '}';
}

static void ready(struct mcd_watch *w, uint32_t events)
{
    struct mcd_mooncake_hand *h = w->context;
    char scrap[512];
    int res;

    (void)events;
    switch (h->phase) {
    case READING:
        res = mcd_mooncake_frame_read(&h->frame, h->fd);
        if (res == 1 && looks_like_json(&h->frame))
            serve(h);
        else if (res == 1 || res == -EMSGSIZE)
            bad(h);
        else if (res < 0)
            hand_free(h);
        break;
    case WRITING:
        write_on(h);
        break;
    case CLOSING:
        if (recv(h->fd, scrap, sizeof(scrap), MSG_DONTWAIT) <= 0)
            hand_free(h);
        break;
    case DELIVERING:
        break;
    }
}

static void late(struct mcd_alarm *t)
{
    struct mcd_mooncake_hand *h = t->context;

    if (h->phase == READING)
        h->m->counters.bad_frames++;
    hand_free(h);
}

void mcd_mooncake_hand_accept(struct mcd_mooncake *m, int fd)
{
    struct mcd_mooncake_hand *h, *oldest = NULL;

    if (m->counters.handshakes_open >= HANDS_MAX) {
        for (h = m->hands; h != NULL; h = h->next)
            if (h->phase != DELIVERING) /* an engine has it */
                oldest = h;
        if (oldest != NULL) {
            hand_free(oldest);
            m->counters.pushed_out++;
        }
    }
    h = aligned_alloc(16, (sizeof(*h) + 15) & ~(size_t)15);
    if (h == NULL) {
        close(fd);
        return;
    }
    memset(h, 0, sizeof(*h));
    h->m = m;
    h->fd = fd;
    h->watch.fd = -1;
    h->watch.ready = ready;
    h->watch.context = h->limit.context = h;
    h->limit.fire = late;
    h->next = m->hands;
    if (m->hands != NULL)
        m->hands->prev = h;
    m->hands = h;
    m->counters.handshakes++;
    m->counters.handshakes_open++;
    if (mcd_watch_add(m->agent, &h->watch, fd, EPOLLIN) != 0) {
        hand_free(h);
        return;
    }
    mcd_alarm_set(m->agent, &h->limit, mcd_now_ns() + LIMIT_NS);
}

void mcd_mooncake_hands_destroy(struct mcd_mooncake *m)
{
    while (m->hands != NULL) {
        struct mcd_mooncake_hand *h = m->hands;

        if (h->phase == DELIVERING) {
            mcd_mooncake_await(m, &h->delivery->command);
            delivery_free(h->delivery);
        }
        hand_free(h);
    }
}
