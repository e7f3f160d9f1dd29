/* SPDX-License-Identifier: Apache-2.0 */
/* All policies, by name. */
#include "policy.h"

#include <stddef.h>
#include <string.h>

const struct mco_policy_ops *const mco_policies[] = {&mco_policy_chain, &mco_policy_lru,
                                                     &mco_policy_s3fifo, &mco_policy_fifo, NULL};

const struct mco_policy_ops *mco_policy_find(const char *name)
{
    for (unsigned i = 0; mco_policies[i] != NULL; i++)
        if (strcmp(mco_policies[i]->name, name) == 0)
            return mco_policies[i];
    return NULL;
}
