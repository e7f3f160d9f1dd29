/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "internal.h"
#include "shm/abi.h"

static int init(const struct mct_env *env, struct mct **out)
{
    (void)env;
    *out = NULL;
    return -EOPNOTSUPP;
}

const struct mct_ops mct_rdma_ops = {
    .name = "rdma",
    .path = MCS_PATH_RDMA,
    .capabilities =
        MCT_CAP_CROSS_HOST | MCT_CAP_HOST_MEMORY | MCT_CAP_KILL_BY_AGENT | MCT_CAP_REGISTERED,
    .init = init,
};
