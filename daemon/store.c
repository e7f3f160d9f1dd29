/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's object store. */
#include "store.h"

#include <errno.h>

int mcd_store_create(struct mcd_agent *a, char *error, size_t error_size)
{
    (void)a;
    (void)error;
    (void)error_size;
    return 0;
}

void mcd_store_destroy(struct mcd_agent *a)
{
    (void)a;
}

bool mcd_store_poll(struct mcd_agent *a)
{
    (void)a;
    return false;
}

void mcd_store_session_gone(struct mcd_session *s)
{
    (void)s;
}

void mcd_store_adopt(struct mcd_agent *a)
{
    (void)a;
}

struct mcd_extent *mcd_store_extent(struct mcd_store *st, uint32_t id)
{
    (void)st;
    (void)id;
    return NULL;
}
