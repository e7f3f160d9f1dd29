/* SPDX-License-Identifier: Apache-2.0 */
/* What peers may reach here, and how it is taken away from them. */
#include "daemon/net.h"
#include "fixture.h"

struct host {
    struct fixture f;
    struct mcd_exports exports;
    struct mcd_export export;
    struct mcd_visitor visitor;
};

static struct host h;

static void start(uint32_t access)
{
    memset(&h, 0, sizeof(h));
    fix_init(&h.f, access, 4096);
    h.export = (struct mcd_export){.segment = h.f.segment, .incarnation = 5, .index = 7};
    h.exports.slots[7] = &h.export;
    h.visitor.exports = &h.exports;
    strcpy(h.visitor.name, "peer");
}

static struct mct_request request(enum mct_op op, uint64_t offset, uint64_t length)
{
    return (struct mct_request){.op = op,
                                .export_index = 7,
                                .incarnation = 5,
                                .address = h.f.target.address + offset,
                                .length = length};
}

static uint16_t resolve(const struct mct_request *r, void **pointer)
{
    uint64_t before[MCS_STATUS_COUNT];
    uint16_t status;

    memcpy(before, h.f.engine->counters.served_refused, sizeof(before));
    *pointer = NULL;
    status = mcd_serve_resolve(h.f.engine, &h.visitor, r, pointer);
    for (unsigned i = 0; i < MCS_STATUS_COUNT; i++)
        cr_assert_eq(h.f.engine->counters.served_refused[i],
                     before[i] + (i == status && status != MCS_OK));
    cr_assert_eq(*pointer != NULL, status == MCS_OK);
    return status;
}

Test(serve, ranges_rights_and_lives)
{
    struct mct_request r;
    struct mcd_snapshot *old;
    void *p;

    start(MCS_ACCESS_READ);
    r = request(MCT_READ, 100, 64);
    cr_assert_eq(resolve(&r, &p), MCS_OK);
    cr_assert_eq(p, h.f.target.map + 100);
    r = request(MCT_READ, FIX_EXTENT_SIZE - 64, 64);
    cr_assert_eq(resolve(&r, &p), MCS_OK);
    r.length++;
    cr_assert_eq(resolve(&r, &p), MCS_BAD_RANGE);
    r.length = UINT64_MAX;
    cr_assert_eq(resolve(&r, &p), MCS_BAD_RANGE);
    r = request(MCT_READ, (uint64_t)-1, 64);
    cr_assert_eq(resolve(&r, &p), MCS_BAD_RANGE);
    r = request(MCT_WRITE, 100, 64);
    cr_assert_eq(resolve(&r, &p), MCS_ACCESS);
    r = request(MCT_READ, 100, 64);
    r.incarnation++;
    cr_assert_eq(resolve(&r, &p), MCS_STALE);
    r = request(MCT_READ, 100, 64);
    for (uint32_t i = 0; i < 3; i++) {
        r.export_index = i == 0 ? 8 : i == 1 ? MCD_EXPORTS_MAX : UINT32_MAX;
        cr_assert_eq(resolve(&r, &p), MCS_STALE);
    }
    /* taken away: the owner is still there, then it is not */
    cr_assert_eq(mcd_segment_clear(h.f.segment, &old), 0);
    free(old);
    r = request(MCT_READ, 100, 64);
    cr_assert_eq(resolve(&r, &p), MCS_BAD_RANGE);
    mcs_store_release(&h.f.segment->owner, NULL); /* partner: look_up() in serve.c */
    cr_assert_eq(resolve(&r, &p), MCS_REVOKED);
    fix_fini(&h.f);
}

Test(serve, nothing_is_passed_on_to_a_third_agent)
{
    struct mcd_remote remote = {.incarnation = 1};
    struct mct_request r;
    void *p;

    start(MCS_ACCESS_READ);
    h.f.segment->remote = &remote;
    r = request(MCT_READ, 0, 64);
    cr_assert_eq(resolve(&r, &p), MCS_INVALID_HANDLE);
    cr_assert_eq(mcd_serve_notify(h.f.engine, &h.visitor, &r, 1, 0, "n", 1, "", 0),
                 MCS_INVALID_HANDLE);
    fix_fini(&h.f);
}

Test(serve, those_who_name_no_segment_reach_public_buffers)
{
    struct mct_request r;
    void *p;

    start(MCS_ACCESS_READ);
    h.visitor.exports = NULL;
    r = request(MCT_READ, 100, 64);
    cr_assert_eq(resolve(&r, &p), MCS_BAD_RANGE);
    mcd_engine_open_buffers(h.f.engine, h.f.segment->snapshot);
    cr_assert_eq(resolve(&r, &p), MCS_OK);
    cr_assert_eq(p, h.f.target.map + 100);
    r.op = MCT_WRITE;
    cr_assert_eq(resolve(&r, &p), MCS_ACCESS);
    cr_assert_eq(mcd_serve_notify(h.f.engine, &h.visitor, &r, 1, 0, "n", 1, "", 0), MCS_STALE);
    mcd_engine_open_buffers(h.f.engine, NULL);
    r.op = MCT_READ;
    cr_assert_eq(resolve(&r, &p), MCS_BAD_RANGE);
    fix_fini(&h.f);
}

static uint16_t notify(uint64_t notice, const char *text)
{
    struct mct_request r = request(MCT_NOTIFY, 0, 1);

    r.address = notice;
    return mcd_serve_notify(h.f.engine, &h.visitor, &r, 4711, 99, "name", 4, text,
                            (uint32_t)strlen(text));
}

Test(serve, notifications_reach_the_inbox_once)
{
    static const uint64_t again = UINT64_C(1) << 63;
    static char large[MCS_NOTIFY_MESSAGE_MAX + 2];
    const struct mcs_inbox_record *record;
    unsigned n = 0;

    start(MCS_ACCESS_READ);
    cr_assert_eq(notify(1, "first"), MCS_OK);
    record = (const struct mcs_inbox_record *)((char *)h.f.inbox + MCS_SESSION_INBOX_OFFSET);
    cr_assert_eq(record->source, 4711u);
    cr_assert_eq(record->bytes, 99u);
    cr_assert_arr_eq(record + 1, "namefirst", 9);
    /* its answer was lost: it comes again, and is not put again */
    cr_assert_eq(h.f.engine->counters.notifications, 1u);
    cr_assert_eq(notify(1 | again, "first"), MCS_OK);
    cr_assert_eq(h.f.engine->counters.notifications, 1u);
    /* it was the request that was lost */
    cr_assert_eq(notify(2 | again, "second"), MCS_OK);
    cr_assert_eq(h.f.engine->counters.notifications, 2u);
    cr_assert_eq(notify(2 | again, "second"), MCS_OK);
    cr_assert_eq(h.f.engine->counters.notifications, 2u);
    memset(large, 'x', MCS_NOTIFY_MESSAGE_MAX + 1);
    cr_assert_eq(notify(3, large), MCS_INVALID_ARGUMENT);
    while (notify(10 + n, "more") == MCS_OK)
        n++;
    cr_assert_gt(n, 10u);
    cr_assert_eq(notify(10 + n, "more"), MCS_INBOX_FULL);
    mcs_store_release(&h.f.segment->owner, NULL); /* partner: mcd_serve_notify() */
    cr_assert_eq(notify(5, "late"), MCS_REVOKED);
    fix_fini(&h.f);
}

Test(serve, an_engine_without_the_transport_says_so)
{
    struct mcd_serve s = {.ops = &mct_local_ops, .visitor = &h.visitor, .conn = {.fd = -1}};

    start(MCS_ACCESS_READ);
    fix_call(h.f.engine, mcd_serve_adopt, &s);
    cr_assert_eq(s.res, -EOPNOTSUPP);
    cr_assert_eq(h.visitor.conns, 0u);
    fix_call(h.f.engine, mcd_serve_dismiss, &s);
    fix_fini(&h.f);
}
