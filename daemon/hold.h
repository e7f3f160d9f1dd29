/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a session holds in place: objects that it reads, creations that it fills.  Pins that end with the session.
 * Engines of the session's queues and the control thread share it: a spin lock, held for a table's access.
 */
#ifndef MCD_HOLD_H
#define MCD_HOLD_H

#include "store/object/store.h"

struct mcd_holds;

/* max: holds at a time. Memory is taken as it is needed. */
int mcd_holds_create(uint64_t max, struct mcd_holds **out);
/* Ends all of them: no engine has the session's queues any more. NULL is fine. */
void mcd_holds_destroy(struct mcd_holds *h, struct mco_store *s);
/* The view's pin becomes the hold's. 0: there are too many, or no memory. */
uint64_t mcd_hold_add(struct mcd_holds *h, struct mco_store *s, const struct mco_view *v,
                      const struct mco_key *key, bool creation);
/* Takes one out; its pin, and the key's copy (free() key bytes), are the caller's. False: there is no such (any more). */
struct mcd_held {
    struct mco_view view;
    struct mco_key key; /* of creations; bytes NULL otherwise */
    bool creation;
};
bool mcd_hold_take(struct mcd_holds *h, struct mco_store *s, uint64_t hold, struct mcd_held *out);
void mcd_holds_count(struct mcd_holds *h, uint64_t *holds, uint64_t *creations, uint64_t *bytes);

#endif
