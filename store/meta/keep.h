/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this agent wants to be in the service, and what it wants gone: segments' records (claimed:
 * only where no living other has the name) and plain keys. Each is brought about, and again when
 * it was lost, a bounded number at a time and with pauses after failures.
 */
#ifndef MCM_KEEP_H
#define MCM_KEEP_H

#include "service.h"

#define MCM_KEEP_PARALLEL 8u

struct mcm_kept {
    struct mcm_kept *next;
    uint64_t hash; /* of the key */
    char key[MCM_KEY_MAX + MCM_NAME_MAX];
    bool claim;               /* a segment's record */
    struct mcm_record record; /* of a claim */
    struct mcm_text value;    /* what is or should be there; http: of a plain key */
    bool wanted;              /* else it shall go */
    bool present;             /* the service has said so */
    bool maybe;               /* it may be there: it has to be removed once it is not wanted */
    bool busy;                /* a call is under way */
    bool writing;             /* and it writes; else it removes */
    bool lost;                /* another has taken the name: said once */
    unsigned version, busy_version; /* of the value */
    unsigned failures;
    uint64_t due;
    uint64_t since;                 /* claim: wall-clock seconds of its first registration */
    uint64_t revision;              /* at which it was written */
    uint64_t list;                  /* the listing it was last seen in */
    uint64_t renew;                 /* when it is to be written again, though present; 0: never */
    struct mcm_request *put, *gone; /* waiting */
};

/* REGISTER, UNREGISTER, PUT, DELETE. */
void mcm_keep_request(struct mcm_service *s, struct mcm_request *r);
/* The agent's own plain key: kept for ever. */
int mcm_keep_own(struct mcm_service *s, const char *key, const char *value);
void mcm_keep_tick(struct mcm_service *s, uint64_t now);
struct mcm_kept *mcm_keep_find(struct mcm_service *s, const char *key);
/* Back end: how its keep() or drop() has ended. holder: of -EEXIST, may be NULL. */
void mcm_keep_done(struct mcm_service *s, struct mcm_kept *k, int res, uint64_t revision,
                   const struct mcm_record *holder, const char *text);
/* Back end: it is no longer there, or it has to be looked at now. */
void mcm_keep_missing(struct mcm_service *s, struct mcm_kept *k);
/* Back end, instead of mcm_keep_done(): nothing was tried, there is no lease. */
void mcm_keep_wait(struct mcm_service *s, struct mcm_kept *k);
/* Those that wait for a lease are told that there will be none for now, and why. */
void mcm_keep_refuse(struct mcm_service *s, int res, const char *text);
/* And the end of that. */
void mcm_keep_go(struct mcm_service *s);
/* Everything died with the lease or the service. */
void mcm_keep_all_missing(struct mcm_service *s);
/* Back end: a key of ours is there though nobody wants it (a write that came late). */
void mcm_keep_stray(struct mcm_service *s, const char *key, const struct mcm_record *r,
                    const void *value, size_t size);
/* Requests that wait are answered -ECANCELED. */
void mcm_keep_cancel(struct mcm_service *s);
void mcm_keep_free(struct mcm_service *s);

#endif
