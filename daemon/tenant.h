/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tenant: whom memory, limits and shares of the engines are kept for.  Each session belongs to one
 * from its first moment: that of the first rule (rule.h) that names its user or one of its groups, or the
 * one of its user.
 */
#ifndef MCD_TENANT_H
#define MCD_TENANT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "config.h"

/* What a tenant is refused more of. */
enum mcd_limit {
    MCD_LIMIT_MEMORY,
    MCD_LIMIT_SESSIONS,
    MCD_LIMIT_QUEUES,
    MCD_LIMIT_TASKS,
    MCD_LIMIT_BATCHES,
    MCD_LIMIT_COUNT
};
extern const char *const mcd_limit_words[MCD_LIMIT_COUNT]; /* the keys' names */

#define MCD_SHARE_ONE (UINT64_C(1) << 20) /* what a byte counts with weight 1 */

/* What its queues have done: those that are there, and those that are gone. */
struct mcd_tenant_sums {
    uint64_t tasks, bytes, caller_bytes;
};

struct mcd_tenant {
    uint64_t id;                    /* the uid, or mcd_tenant_id() of the name */
    char name[MCD_TENANT_NAME_MAX]; /* of its rule, or the id */
    bool named;
    /* stored relaxed by the control thread, read relaxed by engines: any value will do, old or new */
    uint64_t scale; /* MCD_SHARE_ONE / weight */
    uint64_t rate;  /* bytes a second, 0: no limit */
    uint64_t tasks_max, batches_max;
    /* control thread */
    struct mcd_tenant_rule limits; /* in force */
    uint32_t refs;                 /* connections */
    uint32_t sessions, queues;
    uint64_t memory;             /* bytes of extents and mappings of its sessions */
    uint64_t tasks_gone;         /* tasks and bytes of queues that are gone */
    uint64_t bytes_gone;         /* moved by engines */
    uint64_t caller_bytes_gone;  /* in callers' threads, as they report them */
    struct mcd_tenant_sums sums; /* as of the last mcd_tenants_sum() */
    struct mcd_tenant *next;
    /* engines, several at a time: mcs_fetch_add() and the like */
    uint64_t tasks __attribute__((aligned(64))); /* taken and not ended at once */
    uint64_t batches;                            /* that have such tasks */
    uint64_t due;       /* ticks: when it has paid for what it was given; see mcd_tenant_pay() */
    uint64_t throttled; /* ticks that an engine had work of it and no leave to do it */
    uint64_t refused[MCD_LIMIT_COUNT];
};

struct mcd_tenants {
    struct mcd_tenant *list;
    unsigned count;
};

/* Equal on all hosts, never a uid: the top bit is set. */
uint64_t mcd_tenant_id(const char *name);

/* The tenant of a fresh connection; mcd_tenant_put() gives it back. -ENOMEM. */
int mcd_tenant_get(struct mcd_tenants *all, const struct mcd_config *c, uid_t uid,
                   const gid_t *gids, size_t ngids, struct mcd_tenant **out);
/* The tenant of a session that an earlier agent had, by its id. Where its section is gone it has the limits of
 * [tenant]. */
int mcd_tenant_get_again(struct mcd_tenants *all, const struct mcd_config *c, uint64_t id,
                         struct mcd_tenant **out);
void mcd_tenant_put(struct mcd_tenants *all, struct mcd_tenant *t);
/* Weights and limits of all of them as the configuration has them now; what lost its section keeps what
 * it had until its last session ends. */
void mcd_tenants_adopt(struct mcd_tenants *all, const struct mcd_config *c);
void mcd_tenants_fini(struct mcd_tenants *all);

/* Takes the sums of all of them, in one round through the sessions. */
struct mcd_session;
void mcd_tenants_sum(struct mcd_tenants *all, const struct mcd_session *sessions);

/* May it have `more` of what it has `have` of? Counts the refusal. Control thread. */
bool mcd_tenant_allows(struct mcd_tenant *t, enum mcd_limit what, uint64_t have, uint64_t more);

/* ---- engines --------------------------------------------------------------------- */

/* A task more that does not end at once, of a batch that has `of_batch` such already. The limit that refuses
 * it, which is counted, or MCD_LIMIT_COUNT. */
enum mcd_limit mcd_tenant_admit(struct mcd_tenant *t, uint32_t of_batch);
/* It has ended, and `of_batch` others of its batch have not. */
void mcd_tenant_release(struct mcd_tenant *t, uint32_t of_batch);

/*
 * The rate: one word for all engines.  Who has no debt may be given a slice and pays afterwards, which puts
 * the time when the next may follow further into the future; time unused counts for a fiftieth of a second.
 */
bool mcd_tenant_may(const struct mcd_tenant *t, uint64_t now);
uint64_t mcd_tenant_throttled_ms(const struct mcd_tenant *t, uint64_t tick_hz);
void mcd_tenant_pay(struct mcd_tenant *t, uint64_t bytes, uint64_t now, uint64_t tick_hz);

#endif
