/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a session holds in place: objects that it reads, creations that it fills.  Pins that end with the session.
 * Engines of the session's queues and the control thread share it: a spin lock, held for a table's access.
 *
 *   creation   add --> held --seal_begin--> sealing --seal_end--> over (sealed), or held again
 *                       '---take--> over     '---take--> marked: seal_end() hands it out
 *   reader     add --> held --take--> over
 */
#ifndef MCD_HOLD_H
#define MCD_HOLD_H

#include "store/object/store.h"

struct mcd_holds;

/* One that was taken out: its pin is the caller's, and no longer one in place. */
struct mcd_held {
    struct mco_view view;
    struct mco_key key; /* of a creation, in `text`; else bytes NULL */
    bool creation;
    uint8_t text[MCS_KEY_MAX];
};

/* max: holds at a time. Memory is taken as it is needed. */
int mcd_holds_create(uint64_t max, struct mcd_holds **out);
/* Ends all of them: no engine has the session's queues any more. NULL is fine. */
void mcd_holds_destroy(struct mcd_holds *h, struct mco_store *s);
/* Called by mcd_holds_destroy() for each creation that it gives up, before its space goes. */
void mcd_holds_on_given_up(struct mcd_holds *h,
                           void (*given_up)(void *context, const struct mco_key *key,
                                            const struct mco_version *version),
                           void *context);

/* The view's pin becomes the hold's, in place. key: copied for creations, else not used. 0: there are too many, or no memory; the pin stays
 * the caller's. */
uint64_t mcd_hold_add(struct mcd_holds *h, struct mco_store *s, const struct mco_view *v,
                      const struct mco_key *key, bool creation);
/* False: there is no such (any more), or it is being sealed and ends with that. */
bool mcd_hold_take(struct mcd_holds *h, struct mco_store *s, uint64_t hold, struct mcd_held *out);
/* A creation is about to be sealed: its view, and the key, which stays where it is until seal_end(). False: no such
 * creation, or another one seals it. */
bool mcd_hold_seal_begin(struct mcd_holds *h, uint64_t hold, struct mco_view *view,
                         struct mco_key *key);
/* over: it is no hold any more (and no pin in place): mco_seal() or mco_abort() follows. Else it is held again. True: it was
 * released in between and is the caller's to abort. */
bool mcd_hold_seal_end(struct mcd_holds *h, struct mco_store *s, uint64_t hold, bool over);
void mcd_holds_count(struct mcd_holds *h, uint64_t *holds, uint64_t *creations, uint64_t *bytes);

#endif
