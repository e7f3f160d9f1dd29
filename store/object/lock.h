/* SPDX-License-Identifier: Apache-2.0 */
/* A lock that is spun for: held for a bounded, short time. */
#ifndef MCO_LOCK_H
#define MCO_LOCK_H

#include <sched.h>

#include "shm/atomic.h"

#define MCO_LOCK_SPINS 2000u /* then its holder has lost its core: it gets ours */

struct mco_lock {
    uint32_t taken;
};

static inline bool mco_trylock(struct mco_lock *l)
{
    /* acquire: partner: mco_unlock() */
    return mcs_load_relaxed(&l->taken) == 0 && mcs_exchange(&l->taken, 1u) == 0;
}

static inline void mco_lock(struct mco_lock *l)
{
    for (unsigned spins = 0; !mco_trylock(l); spins++) {
        mcs_pause();
        if (spins % MCO_LOCK_SPINS == MCO_LOCK_SPINS - 1)
            sched_yield();
    }
}

static inline void mco_unlock(struct mco_lock *l)
{
    mcs_store_release(&l->taken, 0u); /* partner: the exchange of mco_trylock() */
}

#endif
