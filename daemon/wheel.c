/* SPDX-License-Identifier: Apache-2.0 */
#include "wheel.h"

#include <string.h>

void mcd_wheel_init(struct mcd_wheel *w, uint64_t tick_hz, uint64_t now)
{
    memset(w, 0, sizeof(*w));
    while (tick_hz / 1000 >> (w->shift + 1) != 0)
        w->shift++;
    w->at = now >> w->shift;
}

static void insert(struct mcd_wheel *w, struct mcd_timer *t, uint32_t notch)
{
    t->notch = notch;
    t->next = w->notches[notch];
    if (t->next != NULL)
        t->next->link = &t->next;
    t->link = &w->notches[notch];
    w->notches[notch] = t;
    w->used[notch / 64] |= UINT64_C(1) << (notch % 64);
    w->set++;
}

void mcd_wheel_set(struct mcd_wheel *w, struct mcd_timer *t, uint64_t due)
{
    /* the notch after the one it falls in: by then all of that one is over */
    uint64_t at = (due >> w->shift) + 1;

    mcd_wheel_clear(w, t);
    t->due = due;
    if (at <= w->at)
        at = w->at + 1;
    insert(w, t, (uint32_t)(at % MCD_WHEEL_NOTCHES));
}

void mcd_wheel_clear(struct mcd_wheel *w, struct mcd_timer *t)
{
    if (t->link == NULL)
        return;
    *t->link = t->next;
    if (t->next != NULL)
        t->next->link = t->link;
    t->link = NULL;
    if (w->notches[t->notch] == NULL)
        w->used[t->notch / 64] &= ~(UINT64_C(1) << (t->notch % 64));
    w->set--;
}

bool mcd_wheel_run(struct mcd_wheel *w, uint64_t now,
                   void (*fire)(void *context, struct mcd_timer *t), void *context)
{
    uint64_t target = now >> w->shift;
    bool any = false;

    if (target > w->at + MCD_WHEEL_NOTCHES)
        w->at = target - MCD_WHEEL_NOTCHES;
    while (w->at < target) {
        uint32_t notch = (uint32_t)(++w->at % MCD_WHEEL_NOTCHES);
        struct mcd_timer *list = w->notches[notch];

        if (list == NULL)
            continue;
        list->link = &list; /* off the wheel, so that what is set meanwhile is not met here */
        w->notches[notch] = NULL;
        w->used[notch / 64] &= ~(UINT64_C(1) << (notch % 64));
        while (list != NULL) {
            struct mcd_timer *t = list;

            mcd_wheel_clear(w, t);
            if (t->due > now) {
                insert(w, t, notch); /* in a later round */
                continue;
            }
            any = true;
            fire(context, t);
        }
    }
    return any;
}

uint64_t mcd_wheel_next(const struct mcd_wheel *w, uint64_t now)
{
    uint64_t at = w->at + 1;

    if (w->set == 0)
        return UINT64_MAX;
    for (uint64_t end = at + MCD_WHEEL_NOTCHES; at < end;) {
        uint64_t word = w->used[at % MCD_WHEEL_NOTCHES / 64] >> (at % 64);

        if (word != 0) {
            at += (uint64_t)__builtin_ctzll(word);
            break;
        }
        at += 64 - at % 64;
    }
    at <<= w->shift;
    return at > now ? at - now : 0;
}
