/* SPDX-License-Identifier: Apache-2.0 */
/* The directory. */
#include "directory.h"

#include <errno.h>

int mco_directory_create(const struct mco_directory_options *o, struct mco_directory **out)
{
    (void)o;
    (void)out;
    return -ENOTSUP;
}

void mco_directory_destroy(struct mco_directory *d)
{
    (void)d;
}

uint64_t mco_directory_token(const struct mco_directory *d)
{
    (void)d;
    return 0;
}

void mco_directory_expect(struct mco_directory *d, const char *address)
{
    (void)d;
    (void)address;
}

uint32_t mco_directory_join(struct mco_directory *d, const struct mco_holder *h, uint64_t now,
                            bool *report)
{
    (void)d;
    (void)h;
    (void)now;
    (void)report;
    return 0;
}

uint32_t mco_directory_holder(const struct mco_directory *d, uint64_t identity)
{
    (void)d;
    (void)identity;
    return 0;
}

const struct mco_holder *mco_directory_holder_at(const struct mco_directory *d, uint32_t holder)
{
    (void)d;
    (void)holder;
    return NULL;
}

void mco_directory_heard(struct mco_directory *d, uint32_t holder, uint64_t now)
{
    (void)d;
    (void)holder;
    (void)now;
}

void mco_directory_left(struct mco_directory *d, uint32_t holder, uint64_t now)
{
    (void)d;
    (void)holder;
    (void)now;
}

void mco_directory_drain(struct mco_directory *d, uint32_t holder, bool drain)
{
    (void)d;
    (void)holder;
    (void)drain;
}

enum mco_holder_state mco_directory_state(const struct mco_directory *d, uint32_t holder)
{
    (void)d;
    (void)holder;
    return 0;
}

void mco_directory_report(struct mco_directory *d, uint32_t holder, const struct mco_report *r,
                          size_t n, uint64_t now)
{
    (void)d;
    (void)holder;
    (void)r;
    (void)n;
    (void)now;
}

void mco_directory_report_begins(struct mco_directory *d, uint32_t holder)
{
    (void)d;
    (void)holder;
}

void mco_directory_report_ends(struct mco_directory *d, uint32_t holder, uint64_t now)
{
    (void)d;
    (void)holder;
    (void)now;
}

bool mco_directory_rebuilding(const struct mco_directory *d, uint64_t now)
{
    (void)d;
    (void)now;
    return false;
}

void mco_directory_find(struct mco_directory *d, const struct mco_key *keys, size_t n, uint64_t now,
                        struct mco_found_at *out)
{
    (void)d;
    (void)keys;
    (void)n;
    (void)now;
    (void)out;
}

size_t mco_directory_exist(struct mco_directory *d, const struct mco_key *keys, size_t n,
                           uint64_t now, uint8_t *status)
{
    (void)d;
    (void)keys;
    (void)n;
    (void)now;
    (void)status;
    return 0;
}

void mco_directory_start(struct mco_directory *d, uint32_t writer, const struct mco_start *s,
                         size_t n, uint64_t now, struct mco_started *out)
{
    (void)d;
    (void)writer;
    (void)s;
    (void)n;
    (void)now;
    (void)out;
}

void mco_directory_end(struct mco_directory *d, uint32_t writer, const struct mco_report *r,
                       size_t n, uint64_t now, uint8_t *status)
{
    (void)d;
    (void)writer;
    (void)r;
    (void)n;
    (void)now;
    (void)status;
}

enum mcs_status mco_directory_remove(struct mco_directory *d, const struct mco_key *key,
                                     struct mco_version *upto, uint64_t now, unsigned *left)
{
    (void)d;
    (void)key;
    (void)upto;
    (void)now;
    (void)left;
    return MCS_NOT_SUPPORTED;
}

unsigned mco_directory_pending(struct mco_directory *d, const struct mco_key *key,
                               const struct mco_version *version, uint64_t now)
{
    (void)d;
    (void)key;
    (void)version;
    (void)now;
    return 0;
}

bool mco_directory_next_order(struct mco_directory *d, uint64_t now, struct mco_order *out)
{
    (void)d;
    (void)now;
    (void)out;
    return false;
}

void mco_directory_done(struct mco_directory *d, const struct mco_order *o, uint32_t status,
                        uint64_t now)
{
    (void)d;
    (void)o;
    (void)status;
    (void)now;
}

bool mco_directory_tick(struct mco_directory *d, uint64_t now)
{
    (void)d;
    (void)now;
    return false;
}

void mco_directory_walk(struct mco_directory *d, uint64_t tenant, uint32_t holder, uint64_t *cursor,
                        bool (*each)(void *context, const struct mco_key *key,
                                     const struct mco_found_at *f),
                        void *context)
{
    (void)d;
    (void)tenant;
    (void)holder;
    (void)cursor;
    (void)each;
    (void)context;
}

void mco_directory_get_stats(const struct mco_directory *d, uint64_t now,
                             struct mco_directory_stats *out)
{
    (void)d;
    (void)now;
    (void)out;
}
