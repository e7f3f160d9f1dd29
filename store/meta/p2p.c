/* SPDX-License-Identifier: Apache-2.0 */
#include "local.h"

#include "record.h"

#include <errno.h>
#include <stdio.h>

bool mcm_p2p_explicit(struct mcm_request *r, const char *name)
{
    struct mcm_record *found = &r->found;

    *found = (struct mcm_record){.version = MCM_VERSION};
    if (!mcm_explicit_name(name, found->agent, found->name))
        return false;
    r->res = 0;
    r->has_record = true;
    return true;
}

void mcm_p2p_answer(struct mcm_cache *table, struct mcm_request *r)
{
    mcm_memory_answer(table, r);
    if (r->kind == MCM_LOOKUP && r->res == -ENOENT)
        snprintf(r->text, sizeof(r->text),
                 "no such segment on this host; with [meta] backend = p2p a name elsewhere is "
                 "HOST:PORT/NAME, with its agent's [peer] address");
}
