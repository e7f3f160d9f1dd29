/* SPDX-License-Identifier: Apache-2.0 */
/* A master. */
#include "master.h"

#include <errno.h>

int mcd_master_create(struct mcd_agent *a, struct mcd_master **out, char *error, size_t error_size)
{
    (void)a;
    (void)out;
    (void)error;
    (void)error_size;
    return 0;
}

void mcd_master_destroy(struct mcd_master *m)
{
    (void)m;
}

void mcd_master_poll(struct mcd_master *m)
{
    (void)m;
}

bool mcd_master_leads(const struct mcd_master *m)
{
    (void)m;
    return false;
}

struct mco_directory *mcd_master_directory(struct mcd_master *m)
{
    (void)m;
    return NULL;
}

bool mcd_master_on_message(struct mcd_master *m, struct mcd_peer *p,
                           const struct mcd_wire_header *h, const uint8_t *payload, size_t size)
{
    (void)m;
    (void)p;
    (void)h;
    (void)payload;
    (void)size;
    return false;
}

void mcd_master_peer_gone(struct mcd_master *m, struct mcd_peer *p)
{
    (void)m;
    (void)p;
}

char *mcd_master_json(struct mcd_master *m)
{
    (void)m;
    return NULL;
}

void mcd_master_answer(struct mcd_master *m, const struct mcd_wire_header *h, uint32_t status,
                       const ProtobufCMessage *answer)
{
    (void)m;
    (void)h;
    (void)status;
    (void)answer;
}
