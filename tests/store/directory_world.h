/* SPDX-License-Identifier: Apache-2.0 */
/* A directory and its holders, with a clock of the test's own. */
#ifndef TESTS_DIRECTORY_WORLD_H
#define TESTS_DIRECTORY_WORLD_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/object/directory.h"

#define S UINT64_C(1000000000)
#define TENANT 7u

static inline struct mco_directory *made(uint64_t token, uint64_t rebuild_ns, uint64_t keys_max)
{
    struct mco_directory_options o = {.token = token,
                                      .keys_max = keys_max,
                                      .rebuild_ns = rebuild_ns,
                                      .put_ns = 30 * S,
                                      .away_ns = 5 * S,
                                      .gone_ns = 60 * S,
                                      .now = S};
    struct mco_directory *d;

    cr_assert_eq(mco_directory_create(&o, &d), 0);
    return d;
}

static inline uint32_t joined(struct mco_directory *d, unsigned n, const char *domain,
                              uint64_t life, uint64_t now, bool *report)
{
    struct mco_holder h = {.identity = n, .life = life, .capacity = 1 << 30};
    bool r;

    snprintf(h.address, sizeof(h.address), "10.0.0.%u:1", n);
    snprintf(h.domain, sizeof(h.domain), "%s", domain);
    return mco_directory_join(d, &h, now, report != NULL ? report : &r);
}

/* One that is here, with nothing. */
static inline uint32_t holder(struct mco_directory *d, unsigned n)
{
    uint32_t h = joined(d, n, "", 1, S, NULL);

    mco_directory_report_begins(d, h);
    mco_directory_report_ends(d, h, S);
    return h;
}

static inline struct mco_key key(const char *text)
{
    return mco_key(TENANT, text, (uint32_t)strlen(text));
}

static inline struct mco_started begun(struct mco_directory *d, uint32_t writer, const char *text,
                                       uint32_t flags, uint8_t replicas, uint32_t preferred,
                                       uint64_t now)
{
    struct mco_start s = {.key = key(text),
                          .size = 100,
                          .flags = flags,
                          .replicas = replicas,
                          .preferred = preferred};
    struct mco_started out;

    mco_directory_start(d, writer, &s, 1, now, &out);
    return out;
}

static inline uint8_t ended(struct mco_directory *d, uint32_t writer, const char *text,
                            struct mco_version v, bool there, uint64_t now)
{
    struct mco_report r = {.key = key(text), .version = v, .size = 100, .crc = 5, .there = there};
    uint8_t status;

    mco_directory_end(d, writer, &r, 1, now, &status);
    return status;
}

static inline struct mco_version put(struct mco_directory *d, uint32_t writer, const char *text,
                                     uint32_t flags, uint8_t replicas, uint64_t now)
{
    struct mco_started s = begun(d, writer, text, flags, replicas, MCO_NO_HOLDER, now);

    cr_assert_eq(s.status, MCS_OK, "%u", s.status);
    cr_assert_eq(ended(d, writer, text, s.version, true, now), MCS_OK);
    return s.version;
}

static inline void reported(struct mco_directory *d, uint32_t h, const char *text,
                            struct mco_version v, bool there, uint8_t copies, uint64_t now)
{
    struct mco_report r = {
        .key = key(text), .version = v, .size = 100, .crc = 5, .there = there, .copies = copies};

    mco_directory_report(d, h, &r, 1, now);
}

static inline struct mco_found_at found(struct mco_directory *d, const char *text, uint64_t now)
{
    struct mco_key k = key(text);
    struct mco_found_at f;
    uint8_t status;

    mco_directory_find(d, &k, 1, now, &f);
    mco_directory_exist(d, &k, 1, now, &status);
    cr_assert_eq(status, f.status);
    return f;
}

static inline struct mco_order next(struct mco_directory *d, uint64_t now)
{
    struct mco_order o;

    cr_assert(mco_directory_next_order(d, now, &o));
    return o;
}

static inline void no_order(struct mco_directory *d, uint64_t now)
{
    struct mco_order o;

    cr_assert_not(mco_directory_next_order(d, now, &o));
}

static inline void ticks(struct mco_directory *d, uint64_t now)
{
    for (unsigned i = 0; i < 100; i++)
        mco_directory_tick(d, now);
}

static inline bool same(struct mco_version a, struct mco_version b)
{
    return mco_version_compare(&a, &b) == 0;
}

#endif
