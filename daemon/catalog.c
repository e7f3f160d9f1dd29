/* SPDX-License-Identifier: Apache-2.0 */
/* The client's half of the directory. */
#include "catalog.h"

#include <errno.h>

#include "store.h"

/* This host is all there is: what it does not hold is nowhere. */
static void answer_alone(struct mcd_ask *a)
{
    for (uint32_t i = 0; i < a->n; i++) {
        struct mcd_ask_key *k = &a->keys[i];

        switch (a->kind) {
        case MCD_ASK_START:
            k->version = (struct mco_version){0};
            k->status = MCS_OK;
            break;
        case MCD_ASK_END:
            k->copies = k->status == MCS_OK;
            k->status = MCS_OK;
            break;
        default:
            k->segment = NULL;
            k->status = MCS_NOT_FOUND;
            break;
        }
    }
}

int mcd_ask(struct mcd_engine *g, struct mcd_ask *a)
{
    if (g->o.store == NULL || g->o.store->catalog == NULL) {
        answer_alone(a);
        return 0;
    }
    return 0;
}

void mcd_ask_cancel(struct mcd_engine *g, struct mcd_ask *a)
{
    (void)g;
    (void)a;
}

void mcd_ask_done_with(struct mcd_engine *g, struct mcd_ask *a)
{
    (void)g;
    (void)a;
}

bool mcd_asks_turn(struct mcd_engine *g)
{
    (void)g;
    return false;
}

int mcd_catalog_create(struct mcd_agent *a, struct mcd_catalog **out, char *error,
                       size_t error_size)
{
    (void)a;
    (void)error;
    (void)error_size;
    *out = NULL;
    return 0;
}

void mcd_catalog_stop(struct mcd_catalog *c)
{
    (void)c;
}

void mcd_catalog_destroy(struct mcd_catalog *c)
{
    (void)c;
}

void mcd_catalog_poll(struct mcd_catalog *c)
{
    (void)c;
}

void mcd_catalog_extent(struct mcd_catalog *c, struct mcd_extent *e, bool there)
{
    (void)c;
    (void)e;
    (void)there;
}

bool mcd_catalog_draining(const struct mcd_catalog *c)
{
    (void)c;
    return false;
}

void mcd_catalog_peer(struct mcd_catalog *c, struct mcd_peer *p, bool up)
{
    (void)c;
    (void)p;
    (void)up;
}

bool mcd_catalog_on_message(struct mcd_catalog *c, struct mcd_peer *p,
                            const struct mcd_wire_header *h, const uint8_t *payload, size_t size)
{
    (void)c;
    (void)p;
    (void)h;
    (void)payload;
    (void)size;
    return false;
}

void mcd_catalog_leader(struct mcd_catalog *c, const char *address, uint64_t token,
                        struct mcd_master *master)
{
    (void)c;
    (void)address;
    (void)token;
    (void)master;
}

int mcd_catalog_objects(struct mcd_catalog *c, const struct mcs_msg_objects *m, uint64_t tenant,
                        uint64_t deadline, mcd_catalog_told *told, void *context)
{
    (void)c;
    (void)m;
    (void)tenant;
    (void)deadline;
    (void)told;
    (void)context;
    return -ENOTSUP;
}

void mcd_catalog_get_stats(const struct mcd_catalog *c, struct mcd_catalog_stats *out)
{
    (void)c;
    (void)out;
}

void mcd_catalog_answer(struct mcd_catalog *c, const struct mcd_wire_header *h, uint32_t status,
                        const ProtobufCMessage *m)
{
    (void)c;
    (void)h;
    (void)status;
    (void)m;
}
