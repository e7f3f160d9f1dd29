/* SPDX-License-Identifier: Apache-2.0 */
/* Same host: the agent has both ends mapped and copies. Slices complete as they are posted. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "copy.h"
#include "shm/abi.h"
#include "transports/transport.h"

/* There is nothing to keep: one instance and one link serve everybody. */
struct mct {
    char unused;
};
struct mct_link {
    struct mct *transport;
};

static struct mct instance;
static struct mct_link loop = {.transport = &instance};

static int local_init(const struct mct_env *env, struct mct **out)
{
    (void)env;
    mct_copy_init();
    *out = &instance;
    return 0;
}

static void local_fini(struct mct *t)
{
    (void)t;
}

static int local_connect(struct mct *t, const struct mct_peer *peer, unsigned engine,
                         struct mct_link **out)
{
    (void)t;
    (void)engine;
    if (peer != NULL)
        return -EINVAL; /* another host's */
    *out = &loop;
    return 0;
}

static void local_disconnect(struct mct_link *link)
{
    (void)link;
}

static unsigned local_post(struct mct_link *link, struct mct_slice *const *slices, unsigned n)
{
    (void)link;
    for (unsigned i = 0; i < n; i++) {
        struct mct_slice *s = slices[i];
        void *dst = s->op == MCT_WRITE ? s->remote : s->local;
        const void *src = s->op == MCT_WRITE ? s->local : s->remote;

        if (s->large)
            mct_stream(dst, src, s->length);
        else
            mct_copy(dst, src, s->length);
        s->moved = s->length;
        s->status = 0;
        s->quiesced = true;
    }
    return n;
}

static unsigned local_poll(struct mct_link *link, struct mct_slice **done, unsigned n)
{
    (void)link;
    (void)done;
    (void)n;
    return 0;
}

static void local_cancel(struct mct_link *link, struct mct_slice *slice)
{
    (void)link;
    (void)slice; /* it has come back already */
}

static int local_quiesce(struct mct *t, uint64_t address, uint64_t length)
{
    (void)t;
    (void)address;
    (void)length;
    return 0; /* nothing is ever under way between two posts */
}

static size_t local_describe(struct mct *t, struct mct_link *link, char *out, size_t size)
{
    (void)t;
    (void)link;
    return (size_t)snprintf(out, size, "{\"transport\":\"local\",\"kernel\":\"%s\"}",
                            mct_copy_kernel());
}

const struct mct_ops mct_local_ops = {
    .name = "local",
    .path = MCS_PATH_LOCAL,
    .capabilities = MCT_CAP_SAME_HOST | MCT_CAP_HOST_MEMORY | MCT_CAP_SYNCHRONOUS,
    .init = local_init,
    .fini = local_fini,
    .connect = local_connect,
    .disconnect = local_disconnect,
    .post = local_post,
    .poll = local_poll,
    .cancel = local_cancel,
    .quiesce = local_quiesce,
    .describe = local_describe,
};
