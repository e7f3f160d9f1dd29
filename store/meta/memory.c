/* SPDX-License-Identifier: Apache-2.0 */
#include "local.h"

#include <errno.h>
#include <stdio.h>

static void answer(struct mcm_request *r, int res, const char *text)
{
    r->res = res;
    snprintf(r->text, sizeof(r->text), "%s", text);
}

void mcm_memory_answer(struct mcm_cache *table, struct mcm_request *r)
{
    const struct mcm_stamp always = {0};
    struct mcm_cached *e;

    switch (r->kind) {
    case MCM_REGISTER:
        mcm_cache_put(table, &r->record, always, &e);
        answer(r, e ? 0 : -ENOMEM, e ? "" : "no memory for the name");
        break;
    case MCM_UNREGISTER:
        e = mcm_cache_find(table, r->record.name);
        if (e && e->record.incarnation == r->record.incarnation)
            mcm_cache_drop(table, r->record.name, always);
        answer(r, 0, "");
        break;
    case MCM_LOOKUP:
        e = mcm_cache_find(table, r->record.name);
        r->has_record = e != NULL;
        if (e)
            r->found = e->record;
        answer(r, e ? 0 : -ENOENT,
               e ? "" : "no such segment on this host, and [meta] backend = memory knows no other");
        break;
    case MCM_GET:
    case MCM_PUT:
    case MCM_DELETE:
        answer(r, -ENOTSUP, "there is no metadata service; set [meta] backend to etcd or http");
        break;
    }
}
