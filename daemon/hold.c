/* SPDX-License-Identifier: Apache-2.0 */
/* What sessions hold in place. */
#include "hold.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "store/object/lock.h"

#define CHUNK 128u    /* holds whose memory is taken at a time */
#define SHORT_KEY 64u /* bytes of a key that need no memory of their own */
#define NO_HOLD UINT32_MAX

enum state { UNUSED, HELD, SEALING, RELEASED /* while it was being sealed */ };

struct entry {
    struct mco_view view;
    struct mco_key key;
    uint8_t state;
    bool creation;
    uint32_t generation; /* of this place: a hold's number is used once */
    uint32_t next;       /* of those that are unused */
    uint8_t text[SHORT_KEY];
};

struct mcd_holds {
    struct mco_lock lock;
    uint32_t max, room; /* entries; those that have memory */
    uint32_t unused;    /* the first one */
    uint32_t seed; /* of generations: a hold of an earlier agent's life names none of this one */
    uint64_t holds, creations, bytes;
    void (*given_up)(void *context, const struct mco_key *key, const struct mco_version *version);
    void *context;
    struct entry *chunks[];
};

static struct entry *entry_of(struct mcd_holds *h, uint32_t index)
{
    return &h->chunks[index / CHUNK][index % CHUNK];
}

static uint64_t name_of(const struct entry *e, uint32_t index)
{
    return (uint64_t)e->generation << 32 | (index + 1);
}

/* The entry that a hold names, in use; NULL: none. */
static struct entry *find(struct mcd_holds *h, uint64_t hold)
{
    uint64_t index = (hold & UINT32_MAX) - 1;
    struct entry *e;

    if (index >= h->room)
        return NULL;
    e = entry_of(h, (uint32_t)index);
    return e->state != UNUSED && e->generation == hold >> 32 ? e : NULL;
}

int mcd_holds_create(uint64_t max, struct mcd_holds **out)
{
    uint32_t n = max < UINT32_MAX / 2 ? (uint32_t)max : UINT32_MAX / 2;
    struct mcd_holds *h =
        calloc(1, sizeof(*h) + ((size_t)n + CHUNK - 1) / CHUNK * sizeof(struct entry *));

    if (h == NULL)
        return -ENOMEM;
    h->max = n;
    h->unused = NO_HOLD;
    if (getrandom(&h->seed, sizeof(h->seed), GRND_NONBLOCK) != (ssize_t)sizeof(h->seed))
        h->seed = (uint32_t)mcs_ticks();
    *out = h;
    return 0;
}

void mcd_holds_on_given_up(struct mcd_holds *h,
                           void (*given_up)(void *context, const struct mco_key *key,
                                            const struct mco_version *version),
                           void *context)
{
    h->given_up = given_up;
    h->context = context;
}

/* Its place is free; the key's memory goes. */
static void forget(struct mcd_holds *h, struct entry *e, uint32_t index)
{
    h->holds--;
    h->creations -= e->creation;
    h->bytes -= e->view.size;
    if (e->key.bytes != NULL && e->key.bytes != e->text)
        free((void *)(uintptr_t)e->key.bytes);
    e->key.bytes = NULL;
    e->state = UNUSED;
    e->generation++;
    e->next = h->unused;
    h->unused = index;
}

void mcd_holds_destroy(struct mcd_holds *h, struct mco_store *s)
{
    if (h == NULL)
        return;
    for (uint32_t i = 0; i < h->room; i++) {
        struct entry *e = entry_of(h, i);

        if (e->state == UNUSED)
            continue;
        mco_pin_in_place(s, e->view.object, false);
        if (e->creation) {
            if (h->given_up != NULL)
                h->given_up(h->context, &e->key, &e->view.version);
            mco_abort(s, e->view.object);
        } else {
            mco_unpin(s, e->view.object);
        }
        forget(h, e, i);
    }
    for (uint32_t i = 0; i < h->room; i += CHUNK)
        free(h->chunks[i / CHUNK]);
    free(h);
}

/* Memory for some more. */
static void grow(struct mcd_holds *h)
{
    struct entry *chunk;

    if (h->room >= h->max)
        return;
    chunk = calloc(CHUNK, sizeof(*chunk));
    if (chunk == NULL)
        return;
    h->chunks[h->room / CHUNK] = chunk;
    for (uint32_t i = CHUNK; i-- > 0;) {
        chunk[i].generation = h->seed;
        chunk[i].next = h->unused;
        h->unused = h->room + i;
    }
    h->room += CHUNK;
}

/* A copy of the key in the entry. */
static bool keep_key(struct entry *e, const struct mco_key *key)
{
    uint8_t *text = e->text;

    if (key->length > SHORT_KEY)
        text = malloc(key->length);
    if (text == NULL)
        return false;
    memcpy(text, key->bytes, key->length);
    e->key = *key;
    e->key.bytes = text;
    return true;
}

uint64_t mcd_hold_add(struct mcd_holds *h, struct mco_store *s, const struct mco_view *v,
                      const struct mco_key *key, bool creation)
{
    uint64_t hold = 0;
    uint32_t index;
    struct entry *e;

    mco_lock(&h->lock);
    if (h->holds >= h->max)
        goto out;
    if (h->unused == NO_HOLD)
        grow(h);
    index = h->unused;
    if (index == NO_HOLD)
        goto out;
    e = entry_of(h, index);
    if (creation && !keep_key(e, key))
        goto out;
    h->unused = e->next;
    e->view = *v;
    e->creation = creation;
    e->state = HELD;
    h->holds++;
    h->creations += creation;
    h->bytes += v->size;
    hold = name_of(e, index);
    mco_pin_in_place(s, v->object, true);
out:
    mco_unlock(&h->lock);
    return hold;
}

bool mcd_hold_take(struct mcd_holds *h, struct mco_store *s, uint64_t hold, struct mcd_held *out)
{
    struct entry *e;
    bool found = false;

    mco_lock(&h->lock);
    e = find(h, hold);
    if (e != NULL && e->state == HELD) {
        out->view = e->view;
        out->creation = e->creation;
        out->key = e->creation ? e->key : (struct mco_key){0};
        if (e->creation)
            out->key.bytes = memcpy(out->text, e->key.bytes, e->key.length);
        forget(h, e, (uint32_t)(hold & UINT32_MAX) - 1);
        mco_pin_in_place(s, out->view.object, false);
        found = true;
    } else if (e != NULL && e->state == SEALING) {
        e->state = RELEASED;
    }
    mco_unlock(&h->lock);
    return found;
}

bool mcd_hold_seal_begin(struct mcd_holds *h, uint64_t hold, struct mco_view *view,
                         struct mco_key *key)
{
    struct entry *e;
    bool found;

    mco_lock(&h->lock);
    e = find(h, hold);
    found = e != NULL && e->creation && e->state == HELD;
    if (found) {
        e->state = SEALING;
        *view = e->view;
        *key = e->key;
    }
    mco_unlock(&h->lock);
    return found;
}

bool mcd_hold_seal_end(struct mcd_holds *h, struct mco_store *s, uint64_t hold, bool over)
{
    struct entry *e;
    bool released = false;

    mco_lock(&h->lock);
    e = find(h, hold);
    if (e != NULL) { /* it is: nobody else ends one that is being sealed */
        released = e->state == RELEASED;
        if (over || released) {
            mco_pin_in_place(s, e->view.object, false);
            forget(h, e, (uint32_t)(hold & UINT32_MAX) - 1);
        } else {
            e->state = HELD;
        }
    }
    mco_unlock(&h->lock);
    return released && !over;
}

void mcd_holds_count(struct mcd_holds *h, uint64_t *holds, uint64_t *creations, uint64_t *bytes)
{
    mco_lock(&h->lock);
    *holds = h->holds;
    *creations = h->creations;
    *bytes = h->bytes;
    mco_unlock(&h->lock);
}
