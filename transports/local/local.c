/* SPDX-License-Identifier: Apache-2.0 */
/* Same host: the agent has both ends mapped and copies. Slices complete as they are posted. */
#include <errno.h>
#include <stdlib.h>

#include "copy.h"
#include "reuse.h"
#include "shm/abi.h"
#include "transports/transport.h"

struct mct {
    uint64_t cache_size;
};

/* One an engine: what it remembers of its targets. */
struct mct_link {
    struct mct_reuse reuse;
};

static int local_init(const struct mct_env *env, struct mct **out)
{
    struct mct *t = calloc(1, sizeof(*t));

    (void)env;
    if (t == NULL)
        return -ENOMEM;
    mct_copy_init();
    t->cache_size = mct_cache_size();
    *out = t;
    return 0;
}

static void local_fini(struct mct *t)
{
    free(t);
}

static int local_connect(struct mct *t, void *owner, struct mct_link **out)
{
    struct mct_link *link = calloc(1, sizeof(*link));

    (void)owner;
    if (link == NULL)
        return -ENOMEM;
    mct_reuse_init(&link->reuse, t->cache_size);
    *out = link;
    return 0;
}

static void local_disconnect(struct mct_link *link)
{
    free(link);
}

static const void *source(const struct mct_slice *s)
{
    return s->op == MCT_WRITE ? s->local : s->remote;
}

/* The processor's own prefetchers stop at a page's end: a piece begins with misses unless its first
 * lines are asked for while the piece before it is copied. */
#define HEAD_LINES 8u

static void announce(const struct mct_slice *s)
{
    const char *p = source(s);

    for (unsigned i = 0; i < HEAD_LINES && i * 64 < s->length; i++)
        __builtin_prefetch(p + (size_t)i * 64);
}

static unsigned local_post(struct mct_link *link, struct mct_slice *const *slices, unsigned n)
{
    bool streamed = false;

    for (unsigned i = 0; i < n; i++) {
        struct mct_slice *s = slices[i];
        void *dst = s->op == MCT_WRITE ? s->remote : s->local;

        if (i + 1 < n && s->length > 64)
            announce(slices[i + 1]);
        if (s->large && mct_reuse_note(&link->reuse, s->pass, dst, s->length)) {
            mct_stream(dst, source(s), s->length);
            streamed = true;
        } else {
            mct_copy(dst, source(s), s->length);
        }
        s->moved = s->length;
        s->status = 0;
        s->settled = true;
    }
    if (streamed)
        mct_stream_fence(); /* the slots' stores must come after the bytes */
    return n;
}

static void local_cancel(struct mct_link *link, struct mct_slice *slice)
{
    (void)link;
    (void)slice; /* it has come back already */
}

static int local_quiesce(struct mct *t, const void *base, uint64_t length)
{
    (void)t;
    (void)base;
    (void)length;
    return 0; /* nothing is ever under way between two posts */
}

static bool local_turn(struct mct *t)
{
    (void)t;
    return false;
}

static bool local_pending(const struct mct *t)
{
    (void)t;
    return false;
}

/* It has neither connections nor peers: what is left out of the table is never asked of it. */
const struct mct_ops mct_local_ops = {
    .name = "local",
    .path = MCS_PATH_LOCAL,
    .capabilities = MCT_CAP_SAME_HOST | MCT_CAP_HOST_MEMORY | MCT_CAP_SYNCHRONOUS,
    .init = local_init,
    .fini = local_fini,
    .connect = local_connect,
    .disconnect = local_disconnect,
    .post = local_post,
    .cancel = local_cancel,
    .quiesce = local_quiesce,
    .turn = local_turn,
    .pending = local_pending,
};
