/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening a segment of another host: its agent is looked up, reached, asked; the first description
 * is waited for.  Each step may take its time, all of it together [peer] open_ms.
 */
#include "remote_open.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cluster.h"
#include <daemon/peer.pb-c.h>
#include "log.h"
#include "shm/status.h"
#include "shm/failpoint.h"

struct mcd_opening {
    struct mcd_cluster *cluster;
    struct mcd_opening *next; /* of the peer */
    struct mcd_alarm timer;
    enum { LOOKUP, REACH, ASK, DESCRIBE, OVER } step;
    char name[MCS_NAME_MAX]; /* as asked for */
    char rest[MCS_NAME_MAX]; /* what the peer calls it */
    uint64_t tenant;
    uint64_t incarnation, agent_incarnation; /* of the record; 0: not known */
    bool explicit;                           /* the name says where */
    bool fresh;                              /* the record was asked for anew already */
    bool looking;  /* the metadata's callback will come, whatever happens */
    bool forsaken; /* nobody waits any more: goes with that callback */
    struct mcd_peer *peer;
    struct mcd_call call;
    struct mcd_remote *remote; /* with a reference to its segment */
    uint32_t status;           /* the end, when step is OVER */
    char text[1024];
    mcd_opened done;
    void *context;
};

static void reach(struct mcd_opening *o, const char *address);

static void leave_peer(struct mcd_opening *o)
{
    struct mcd_opening **link;

    if (o->peer == NULL)
        return;
    mcd_peer_forget(o->peer, &o->call);
    link = &o->peer->openings;
    while (*link != o)
        link = &(*link)->next;
    *link = o->next;
    o->peer = NULL;
}

static void discard(struct mcd_opening *o)
{
    leave_peer(o);
    mcd_alarm_clear(o->cluster->agent, &o->timer);
    if (o->remote != NULL)
        mcd_segment_put(o->remote->segment);
    o->remote = NULL;
    if (o->looking)
        o->forsaken = true;
    else
        free(o);
}

/* The end comes from the loop, never from inside the call that began it. */
static void end(struct mcd_opening *o, uint32_t status, const char *text)
{
    leave_peer(o);
    o->step = OVER;
    o->status = status;
    snprintf(o->text, sizeof(o->text), "%s", text);
    mcd_alarm_set(o->cluster->agent, &o->timer, mcd_now_ns());
}

static void timer_fired(struct mcd_alarm *t)
{
    struct mcd_opening *o = t->context;
    struct mcd_segment *s = NULL;
    mcd_opened done = o->done;
    void *context = o->context;
    char text[sizeof(o->text)];
    uint32_t status = o->status;

    if (o->step != OVER) { /* the deadline */
        static const char *const where[] = {
            "the metadata service did not answer",
            "its agent could not be reached",
            "its agent did not answer",
            "its agent did not describe it",
        };

        status = o->step == LOOKUP ? MCS_METADATA
                 : o->step == REACH && o->peer != NULL && o->peer->status != MCS_OK
                     ? o->peer->status
                     : MCS_TIMEOUT;
        snprintf(text, sizeof(text), "segment '%s': %s within [peer] open_ms = %llu%s%s", o->name,
                 where[o->step], (unsigned long long)o->cluster->agent->config.open_ms,
                 o->peer != NULL && o->peer->text[0] != '\0' ? ": " : "",
                 o->peer != NULL ? o->peer->text : "");
    } else {
        memcpy(text, o->text, sizeof(text));
    }
    if (status == MCS_OK) {
        s = o->remote->segment; /* the reference goes along */
        o->remote = NULL;
    } else {
        o->cluster->counters.remote_opens_failed++;
    }
    discard(o);
    done(context, status, text, s);
}

void mcd_remote_cancel(struct mcd_opening *o)
{
    discard(o);
}

/* ---- where is it? -------------------------------------------------------------------- */

static uint32_t status_of(int res)
{
    switch (res) {
    case -ENOENT:
        return MCS_NOT_FOUND;
    case -EINVAL:
        return MCS_INVALID_ARGUMENT;
    case -ECANCELED:
        return MCS_AGENT_DOWN;
    default:
        return MCS_METADATA;
    }
}

static bool look_again(struct mcd_opening *o);

static void looked_up(void *context, const struct mcm_result *result)
{
    struct mcd_opening *o = context;
    char text[1024];

    o->looking = false;
    if (o->forsaken) {
        free(o);
        return;
    }
    if (o->step != LOOKUP)
        return;
    if (result->res != 0) {
        snprintf(text, sizeof(text), "segment '%s': %s", o->name,
                 result->text != NULL && result->text[0] != '\0'
                     ? result->text
                     : "no such name on this host or in the cluster's metadata");
        end(o, status_of(result->res), text);
        return;
    }
    o->incarnation = result->record->incarnation;
    o->agent_incarnation = result->record->agent_incarnation;
    snprintf(o->rest, sizeof(o->rest), "%s", o->name);
    if (strcmp(result->record->agent, o->cluster->address) == 0) {
        if (look_again(o)) /* it may have moved since */
            return;
        snprintf(text, sizeof(text),
                 "segment '%s': its record names this agent, which has no such "
                 "segment any more",
                 o->name);
        end(o, MCS_NOT_FOUND, text);
        return;
    }
    reach(o, result->record->agent);
}

static void look_up(struct mcd_opening *o)
{
    o->step = LOOKUP;
    o->looking = true;
    mcm_lookup(o->cluster->meta, o->name, o->fresh, looked_up, o);
}

/* What is known of it may be old: asks the metadata once more. False: it did so already. */
static bool look_again(struct mcd_opening *o)
{
    if (o->explicit || o->fresh || o->looking)
        return false;
    leave_peer(o);
    o->fresh = true;
    look_up(o);
    return true;
}

bool mcd_name_split(const char *name, char address[MCD_ADDRESS_TEXT_MAX], const char **rest)
{
    const char *slash = strchr(name, '/');
    struct mcd_address a;
    char text[MCD_ADDRESS_TEXT_MAX];
    size_t n = slash == NULL ? strlen(name) : (size_t)(slash - name);

    if (n == 0 || n >= sizeof(text))
        return false;
    memcpy(text, name, n);
    text[n] = '\0';
    if (mcd_address_parse(text, false, &a) != 0 || !a.has_port)
        return false;
    mcd_address_print(&a, address, MCD_ADDRESS_TEXT_MAX);
    *rest = slash == NULL ? "" : slash + 1;
    return true;
}

int mcd_remote_open(struct mcd_cluster *c, const char *name, uint64_t tenant, mcd_opened done,
                    void *context, struct mcd_opening **out)
{
    struct mcd_opening *o = calloc(1, sizeof(*o));
    char address[MCD_ADDRESS_TEXT_MAX];
    const char *rest;

    if (o == NULL)
        return -ENOMEM;
    c->counters.remote_opens++;
    o->cluster = c;
    o->tenant = tenant;
    o->done = done;
    o->context = context;
    o->timer.fire = timer_fired;
    o->timer.context = o;
    snprintf(o->name, sizeof(o->name), "%s", name);
    *out = o;
    mcd_alarm_set(c->agent, &o->timer, mcd_now_ns() + c->agent->config.open_ms * 1000000);
    /* without a slash it may as well be a name that the metadata knows */
    o->explicit = mcd_name_split(name, address, &rest) &&
                  (strchr(name, '/') != NULL || c->agent->config.meta_backend == MCM_MEMORY ||
                   c->agent->config.meta_backend == MCM_P2P);
    if (c->agent->config.require_encryption != 0) {
        end(o, MCS_ENCRYPTION,
            "[peer] require_encryption = yes, and rails to other hosts carry plain text: there is "
            "no way "
            "there");
    } else if (o->explicit) {
        snprintf(o->rest, sizeof(o->rest), "%s", rest);
        if (strcmp(address, c->address) == 0)
            end(o, MCS_NOT_FOUND, "no such segment on this host; `mcshm ls segments` lists them");
        else
            reach(o, address);
    } else {
        look_up(o);
    }
    return 0;
}

/* ---- asking its agent ------------------------------------------------------------------ */

static void reach(struct mcd_opening *o, const char *address)
{
    struct mcd_peer *p;
    int res = mcd_peer_get(o->cluster, address, &p);
    char text[1024];

    if (res != 0) {
        snprintf(text, sizeof(text), "segment '%s': %s: %s", o->name, address,
                 res == -EINVAL ? "not an address of the form host:port"
                 : res == -ENOMEM
                     ? "no memory on this host"
                     : "this agent knows as many others as [peer] max allows: raise it");
        end(o,
            res == -EINVAL   ? MCS_INVALID_ARGUMENT
            : res == -ENOMEM ? MCS_NO_MEMORY
                             : MCS_LIMIT,
            text);
        return;
    }
    o->step = REACH;
    o->peer = p;
    o->next = p->openings;
    p->openings = o;
    mcd_peer_want(p);
}

static void described(struct mcd_opening *o)
{
    end(o, MCS_OK, "");
}

/* What the peer has opened, and this agent cannot use. */
static void give_back(struct mcd_peer *p, const struct mcd_remote_found *found)
{
    Mcd__Close m = MCD__CLOSE__INIT;

    m.export = found->export_index;
    m.incarnation = found->incarnation;
    m.count = 1;
    (void)mcd_peer_send(p, MCD_WIRE_CLOSE, &m.base); /* a peer that is away forgets it by itself */
}

static void answered(struct mcd_call *call, uint32_t status, const uint8_t *payload, size_t size)
{
    struct mcd_opening *o = call->context;
    Mcd__Opened *m = payload == NULL ? NULL : mcd__opened__unpack(NULL, size, payload);
    struct mcd_remote_found found;
    char text[1024], theirs[600];
    int res = 0;

    if (status == MCS_PEER_UNREACHABLE) {
        o->step = REACH; /* the connection broke: goes on when the peer is back */
    } else if ((status == MCS_STALE || status == MCS_NOT_FOUND) && look_again(o)) {
        /* the record was old */
    } else if (status != MCS_OK || m == NULL || m->incarnation == 0 ||
               m->export >= MCD_EXPORTS_MAX) {
        mcd_peer_text(theirs, sizeof(theirs), m != NULL ? m->error : "");
        snprintf(text, sizeof(text), "segment '%s': %s", o->name,
                 theirs[0] != '\0' ? theirs : "its agent did not answer sensibly");
        end(o, status != MCS_OK && status < MCS_STATUS_COUNT ? status : MCS_PROTOCOL, text);
    } else {
        found = (struct mcd_remote_found){.export_index = m->export,
                                          .flags = m->flags,
                                          .incarnation = m->incarnation,
                                          .tenant = m->tenant};
        o->step = DESCRIBE;
        o->remote = mcd_remote_find(o->peer, m->incarnation);
        if (o->remote != NULL)
            mcd_segment_get(o->remote->segment);
        else if ((res = MCS_FAIL(open_answered)) == 0)
            res = mcd_remote_create(o->peer, o->rest, o->tenant, &found, &o->remote);
        if (res != 0) {
            o->remote = NULL;
            give_back(o->peer, &found);
            if (res == -ENOSPC)
                snprintf(text, sizeof(text),
                         "segment '%s': an engine has routes to %u peers already: close segments "
                         "of others",
                         o->name, MCD_ROUTES_MAX);
            else
                snprintf(text, sizeof(text), "segment '%s': no memory on this host", o->name);
            end(o, res == -ENOSPC ? MCS_LIMIT : MCS_NO_MEMORY, text);
        } else {
            mcs_store_relaxed(&o->remote->export_index, found.export_index);
            o->remote->opens++;
            mcd_remote_revive(o->remote);
            if (o->remote->described)
                described(o);
        }
    }
    if (m != NULL)
        mcd__opened__free_unpacked(m, NULL);
}

static void ask(struct mcd_opening *o)
{
    Mcd__Open m = MCD__OPEN__INIT;

    if (o->agent_incarnation != 0 && o->agent_incarnation != o->peer->incarnation && look_again(o))
        return;
    if (mcd_ways_leave(o->peer))
        return; /* asked again once they are gone */
    m.name = o->rest;
    m.tenant = o->tenant;
    o->call.done = answered;
    o->call.context = o;
    if (MCS_FAIL(open_asked) == 0 && mcd_peer_call(o->peer, &o->call, MCD_WIRE_OPEN, &m.base,
                                                   o->cluster->agent->config.open_ms) == 0)
        o->step = ASK;
}

void mcd_openings_peer_up(struct mcd_peer *p)
{
    struct mcd_opening *next;

    for (struct mcd_opening *o = p->openings; o != NULL; o = next) {
        next = o->next;
        if (o->step == REACH)
            ask(o);
    }
}

void mcd_openings_peer_failed(struct mcd_peer *p, uint32_t status, const char *text)
{
    struct mcd_opening *next;
    char sentence[1024];

    for (struct mcd_opening *o = p->openings; o != NULL; o = next) {
        next = o->next;
        snprintf(sentence, sizeof(sentence), "segment '%s': its agent %s: %s", o->name, p->address,
                 text);
        if (!look_again(o))
            end(o, status, sentence);
    }
}

void mcd_openings_move(struct mcd_peer *from, struct mcd_peer *to)
{
    while (from->openings != NULL) {
        struct mcd_opening *o = from->openings;

        from->openings = o->next;
        mcd_peer_forget(from, &o->call);
        if (o->remote != NULL) { /* of the earlier life */
            mcd_segment_put(o->remote->segment);
            o->remote = NULL;
        }
        o->step = REACH;
        o->peer = to;
        o->next = to->openings;
        to->openings = o;
    }
}

void mcd_openings_described(struct mcd_remote *r, uint32_t status, const char *text)
{
    struct mcd_opening *next;

    for (struct mcd_opening *o = r->peer->openings; o != NULL; o = next) {
        next = o->next;
        if (o->step != DESCRIBE || o->remote != r)
            continue;
        if (status == MCS_OK)
            described(o);
        else
            end(o, status, text);
    }
}
