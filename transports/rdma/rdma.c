/* SPDX-License-Identifier: Apache-2.0 */
#include "rdma.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int mct_rdma_create(const struct mct_rdma_options *o, const struct mct_rdma_host *h,
                    struct mct_rdma **out, char *error, size_t error_size)
{
    (void)o;
    (void)h;
    *out = NULL;
    snprintf(error, error_size, "this build has no RDMA");
    return -EOPNOTSUPP;
}

void mct_rdma_destroy(struct mct_rdma *r)
{
    free(r);
}

int mct_rdma_fd(const struct mct_rdma *r)
{
    (void)r;
    return -1;
}

void mct_rdma_run(struct mct_rdma *r)
{
    (void)r;
}

unsigned mct_rdma_nics(const struct mct_rdma *r)
{
    (void)r;
    return 0;
}

void mct_rdma_nic(const struct mct_rdma *r, unsigned nic, struct mct_rdma_nic *out)
{
    (void)r;
    (void)nic;
    memset(out, 0, sizeof(*out));
}

int mct_rdma_memory_create(struct mct_rdma *r, const struct mct_rdma_range *range,
                           mct_rdma_done *done, void *context, struct mct_rdma_memory **out)
{
    (void)r;
    (void)range;
    (void)done;
    (void)context;
    *out = NULL;
    return -EOPNOTSUPP;
}

void mct_rdma_memory_destroy(struct mct_rdma *r, struct mct_rdma_memory *m, mct_rdma_done *done,
                             void *context)
{
    (void)r;
    (void)m;
    (void)done;
    (void)context;
}

uint64_t mct_rdma_memory_chunk(const struct mct_rdma_memory *m)
{
    (void)m;
    return 0;
}

const uint32_t *mct_rdma_memory_keys(const struct mct_rdma_memory *m, unsigned nic, uint64_t *id)
{
    (void)m;
    (void)nic;
    (void)id;
    return NULL;
}

int mct_rdma_pair_create(struct mct_rdma *r, unsigned nic, struct mct *instance, uint64_t conn,
                         mct_rdma_done *done, void *context, struct mct_rdma_pair **out)
{
    (void)r;
    (void)nic;
    (void)instance;
    (void)conn;
    (void)done;
    (void)context;
    *out = NULL;
    return -EOPNOTSUPP;
}

const struct mct_rdma_end *mct_rdma_pair_end(const struct mct_rdma_pair *p)
{
    (void)p;
    return NULL;
}

void mct_rdma_pair_connect(struct mct_rdma_pair *p, const struct mct_rdma_end *peer,
                           mct_rdma_done *done, void *context)
{
    (void)p;
    (void)peer;
    done(context, -EOPNOTSUPP, "this build has no RDMA");
}

void mct_rdma_pair_destroy(struct mct_rdma_pair *p)
{
    (void)p;
}
