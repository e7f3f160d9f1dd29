/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The descriptor of a stock Mooncake process: from itself (P2PHANDSHAKE: a Metadata frame to its
 * handshake port), or from the metadata service.  Within the time that was given, whatever hangs.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "dial.h"
#include "mooncake_frame.h"
#include "mooncake_internal.h"
#include "shm/status.h"

#define HANDSHAKE_PORT 12001u /* of a name without one */

struct mcd_mooncake_fetch {
    struct mcd_watch watch;
    struct mcd_alarm limit; /* then, as soon as there is a result: now */
    struct mcd_mooncake *m;
    struct mcd_mooncake_fetch *next, *prev;
    char name[MCS_NAME_MAX];
    mcd_mooncake_fetched done;
    void *context;
    bool canceled;
    bool asking; /* the metadata service has a request of ours: it cannot be called back */
    struct mcd_dial *dial;
    char dialed[MCD_HOST_MAX];
    int fd;
    struct mcd_mooncake_frame frame;
    /* result */
    bool ready;
    uint32_t status;
    char text[512];
    struct mcd_mooncake_descriptor found;
    char target[MCD_ADDRESS_TEXT_MAX];
};

static void fetch_free(struct mcd_mooncake_fetch *f)
{
    mcd_alarm_clear(f->m->agent, &f->limit);
    mcd_watch_remove(f->m->agent, &f->watch);
    mcd_dial_cancel(f->dial);
    if (f->fd >= 0)
        close(f->fd);
    if (f->prev != NULL)
        f->prev->next = f->next;
    else
        f->m->fetches = f->next;
    if (f->next != NULL)
        f->next->prev = f->prev;
    mcd_mooncake_frame_free(&f->frame);
    free(f->found.buffers);
    free(f);
}

/* The answer is told from the loop, never from inside a call. */
static void end(struct mcd_mooncake_fetch *f, uint32_t status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void end(struct mcd_mooncake_fetch *f, uint32_t status, const char *format, ...)
{
    va_list args;

    if (f->ready)
        return;
    f->ready = true;
    f->status = status;
    va_start(args, format);
    vsnprintf(f->text, sizeof(f->text), format, args);
    va_end(args);
    mcd_watch_remove(f->m->agent, &f->watch);
    mcd_alarm_set(f->m->agent, &f->limit, mcd_now_ns());
}

/* The data port's host is what the descriptor says, else where the process shakes hands. */
static void end_found(struct mcd_mooncake_fetch *f, const char *host)
{
    struct mcd_address a = {.port = f->found.port, .has_port = true};

    snprintf(a.host, sizeof(a.host), "%s", host);
    mcd_address_print(&a, f->target, sizeof(f->target));
    f->m->counters.described++;
    end(f, MCS_OK, "%s", "");
}

static bool is_wildcard(const char *host)
{
    return host[0] == '\0' || strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
}

static bool parse(struct mcd_mooncake_fetch *f, const char *json, size_t size)
{
    char why[160];

    if (mcd_mooncake_parse(json, size, &f->found, why, sizeof(why)) == 0)
        return true;
    end(f, MCS_PROTOCOL, "the descriptor of '%s' cannot be used: %s", f->name, why);
    return false;
}

/* ---- from the process itself ------------------------------------------------------- */

static void readable(struct mcd_watch *w, uint32_t events)
{
    struct mcd_mooncake_fetch *f = w->context;
    struct mcd_address self;
    int res = mcd_mooncake_frame_read(&f->frame, f->fd);

    (void)events;
    if (res == 0)
        return;
    if (res < 0 || !f->frame.typed || f->frame.type != MCD_MOONCAKE_METADATA) {
        end(f, res == -ENOMEM ? MCS_NO_MEMORY : MCS_PROTOCOL,
            "what answers at %s is no Mooncake process that was started with P2PHANDSHAKE",
            f->dialed);
        return;
    }
    if (!parse(f, f->frame.json, f->frame.json_size))
        return;
    if (!is_wildcard(f->found.host))
        end_found(f, f->found.host);
    else if (mcd_address_parse(f->found.name, false, &self) == 0 && !is_wildcard(self.host))
        end_found(f, self.host);
    else
        end_found(f, f->dialed);
}

static void dialed(void *context, int fd, int error, const char *text)
{
    struct mcd_mooncake_fetch *f = context;
    uint8_t *frame = NULL;
    size_t size;

    f->dial = NULL;
    if (fd < 0) {
        end(f,
            error == -EMFILE || error == -ENFILE || error == -EADDRNOTAVAIL ? MCS_LOCAL_RESOURCE
                                                                            : MCS_PEER_UNREACHABLE,
            "%s", text);
        return;
    }
    f->fd = fd;
    f->watch.ready = readable;
    f->watch.context = f;
    /* the first bytes on a fresh connection: there is room */
    if (mcd_mooncake_frame_make(MCD_MOONCAKE_METADATA, true, "{}\n", 3, &frame, &size) != 0 ||
        send(fd, frame, size, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)size ||
        mcd_watch_add(f->m->agent, &f->watch, fd, EPOLLIN) != 0)
        end(f, MCS_PEER_UNREACHABLE, "the connection to %s broke", f->dialed);
    free(frame);
}

static void ask_itself(struct mcd_mooncake_fetch *f, uint64_t limit_ms)
{
    struct mcd_address a;
    char target[MCD_ADDRESS_TEXT_MAX];

    if (mcd_address_parse(f->name, false, &a) != 0) {
        end(f, MCS_INVALID_ARGUMENT,
            "'%s' is no host:port; with P2PHANDSHAKE that is what Mooncake's segments are called",
            f->name);
        return;
    }
    if (!a.has_port) {
        a.port = HANDSHAKE_PORT;
        a.has_port = true;
    }
    snprintf(f->dialed, sizeof(f->dialed), "%s", a.host);
    mcd_address_print(&a, target, sizeof(target));
    if (mcd_dial(f->m->agent, target, NULL, limit_ms, dialed, f, &f->dial) != 0)
        end(f, MCS_INVALID_ARGUMENT, "'%s' is no address that can be connected to", target);
}

/* ---- from their metadata service ---------------------------------------------------- */

/* False: nobody waits any more. */
static bool answered(struct mcd_mooncake_fetch *f, const struct mcm_result *r, const char *what)
{
    f->asking = false;
    if (f->canceled) {
        fetch_free(f);
        return false;
    }
    if (r->res == -ENOENT)
        end(f, MCS_NOT_FOUND, "the metadata service knows no %s of '%s'", what, f->name);
    else if (r->res != 0)
        end(f, MCS_METADATA, "%s", r->text != NULL ? r->text : "the metadata service failed");
    return r->res == 0 && !f->ready;
}

static void got_rpc_meta(void *context, const struct mcm_result *r)
{
    struct mcd_mooncake_fetch *f = context;
    char host[MCD_HOST_MAX];

    if (!answered(f, r, "address"))
        return;
    if (mcd_mooncake_parse_rpc_meta(r->value, r->size, host, sizeof(host)) != 0)
        end(f, MCS_METADATA, "the metadata service's record of where '%s' is makes no sense",
            f->found.name);
    else
        end_found(f, host);
}

static void got_segment(void *context, const struct mcm_result *r)
{
    struct mcd_mooncake_fetch *f = context;
    char key[MCM_KEY_MAX];

    if (!answered(f, r, "segment") || !parse(f, r->value, r->size))
        return;
    if (!is_wildcard(f->found.host)) {
        end_found(f, f->found.host);
        return;
    }
    snprintf(key, sizeof(key), "%srpc_meta/%s", f->m->prefix, f->found.name);
    f->asking = true;
    mcm_get(f->m->store, key, got_rpc_meta, f);
}

static void ask_service(struct mcd_mooncake_fetch *f)
{
    char key[MCM_KEY_MAX];

    /* a name with a slash is a key as it is */
    snprintf(key, sizeof(key), "%s%s%s", f->m->prefix, strchr(f->name, '/') != NULL ? "" : "ram/",
             f->name);
    f->asking = true;
    mcm_get(f->m->store, key, got_segment, f);
}

/* ------------------------------------------------------------------------------------ */

static void tell(struct mcd_alarm *t)
{
    struct mcd_mooncake_fetch *f = t->context;

    if (!f->ready) {
        f->ready = true;
        f->status = MCS_PEER_UNREACHABLE;
        snprintf(f->text, sizeof(f->text), "%s did not describe '%s' in time",
                 f->m->store != NULL ? "the metadata service" : "the process", f->name);
    }
    if (f->status != MCS_OK)
        f->m->counters.described_failed++;
    if (!f->canceled) {
        f->canceled = true;
        f->done(f->context, f->status, f->text, &f->found, f->target);
    }
    if (!f->asking)
        fetch_free(f);
}

int mcd_mooncake_fetch(struct mcd_mooncake *m, const char *name, uint64_t limit_ms,
                       mcd_mooncake_fetched done, void *context, struct mcd_mooncake_fetch **out)
{
    struct mcd_mooncake_fetch *f = aligned_alloc(16, (sizeof(*f) + 15) & ~(size_t)15);

    if (f == NULL)
        return -ENOMEM;
    memset(f, 0, sizeof(*f));
    f->m = m;
    f->fd = f->watch.fd = -1;
    f->done = done;
    f->context = context;
    f->limit.fire = tell;
    f->limit.context = f;
    snprintf(f->name, sizeof(f->name), "%s", name);
    f->next = m->fetches;
    if (m->fetches != NULL)
        m->fetches->prev = f;
    m->fetches = f;
    mcd_alarm_set(m->agent, &f->limit, mcd_now_ns() + limit_ms * MCD_MOONCAKE_MS);
    if (m->store != NULL)
        ask_service(f);
    else
        ask_itself(f, limit_ms);
    *out = f;
    return 0;
}

void mcd_mooncake_fetch_cancel(struct mcd_mooncake_fetch *f)
{
    if (f == NULL)
        return;
    f->canceled = true;
    if (!f->asking)
        fetch_free(f);
}
