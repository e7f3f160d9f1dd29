/* SPDX-License-Identifier: Apache-2.0 */
/* What engines ask the catalog. */
#include "fixture.h"

#include "daemon/catalog.h"

/* Without a cluster a host is all there is: every question is answered at once. */
Test(catalog, alone_everything_is_answered_at_once)
{
    static const struct {
        enum mcd_ask_kind kind;
        uint8_t in, out;
    } all[] = {
        {MCD_ASK_EXIST, 0, MCS_NOT_FOUND},  {MCD_ASK_FIND, 0, MCS_NOT_FOUND},
        {MCD_ASK_PULL, 0, MCS_NOT_FOUND},   {MCD_ASK_START, 0, MCS_OK},
        {MCD_ASK_END, MCS_OK, MCS_OK},      {MCD_ASK_END, MCS_CANCELED, MCS_OK},
        {MCD_ASK_REMOVE, 0, MCS_NOT_FOUND},
    };
    struct fixture f;

    fix_init(&f, MCS_ACCESS_READ, 1 << 18);
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        struct mcd_ask_key keys[2] = {0};
        struct mcd_ask a = {.kind = all[i].kind, .keys = keys, .n = 2};

        for (unsigned k = 0; k < 2; k++) {
            keys[k].key = (struct mco_key){.bytes = "k", .length = 1, .tenant = 7};
            keys[k].status = all[i].in;
            keys[k].version = (struct mco_version){9, 9};
        }
        cr_assert_eq(mcd_ask(f.engine, &a), 0);
        for (unsigned k = 0; k < 2; k++) {
            cr_assert_eq(keys[k].status, all[i].out, "kind %u", all[i].kind);
            if (all[i].kind == MCD_ASK_START)
                cr_assert(keys[k].version.token == 0 && keys[k].version.sequence == 0);
            if (all[i].kind == MCD_ASK_END)
                cr_assert_eq(keys[k].copies, all[i].in == MCS_OK);
        }
        mcd_ask_done_with(f.engine, &a);
        mcd_ask_cancel(f.engine, &a);
    }
    cr_assert(!mcd_asks_turn(f.engine));
    fix_fini(&f);
}
