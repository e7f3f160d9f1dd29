/* SPDX-License-Identifier: Apache-2.0 */
#include "slice.h"

#include <stdlib.h>
#include <string.h>

#define CHUNK 256u

struct mcd_slice_chunk {
    struct mcd_slice_chunk *next;
    struct mcd_slice slices[CHUNK];
};

struct mcd_slice *mcd_slice_get(struct mcd_slices *p)
{
    struct mcd_slice *s = p->free;

    if (s == NULL) {
        struct mcd_slice_chunk *c = malloc(sizeof(*c));

        if (c == NULL)
            return NULL;
        c->next = p->chunks;
        p->chunks = c;
        for (unsigned i = 0; i < CHUNK; i++) {
            c->slices[i].next = p->free;
            p->free = &c->slices[i];
        }
        s = p->free;
    }
    p->free = s->next;
    p->used++;
    memset(s, 0, sizeof(*s));
    return s;
}

void mcd_slice_put(struct mcd_slices *p, struct mcd_slice *s)
{
    if (s->text != NULL) {
        s->text->next = p->texts;
        p->texts = s->text;
    }
    s->next = p->free;
    p->free = s;
    p->used--;
}

struct mcd_text *mcd_text_get(struct mcd_slices *p)
{
    struct mcd_text *t = p->texts;

    if (t == NULL)
        return malloc(sizeof(*t));
    p->texts = t->next;
    return t;
}

void mcd_slices_fini(struct mcd_slices *p)
{
    while (p->chunks != NULL) {
        struct mcd_slice_chunk *c = p->chunks;

        p->chunks = c->next;
        free(c);
    }
    while (p->texts != NULL) {
        struct mcd_text *t = p->texts;

        p->texts = t->next;
        free(t);
    }
    p->free = NULL;
}

void mcd_slice_list_append(struct mcd_slice_list *l, struct mcd_slice *s)
{
    s->again_next = NULL;
    s->again_prev = l->tail;
    if (l->tail != NULL)
        l->tail->again_next = s;
    else
        l->head = s;
    l->tail = s;
}

void mcd_slice_list_prepend(struct mcd_slice_list *l, struct mcd_slice *s)
{
    s->again_prev = NULL;
    s->again_next = l->head;
    if (l->head != NULL)
        l->head->again_prev = s;
    else
        l->tail = s;
    l->head = s;
}

void mcd_slice_list_remove(struct mcd_slice_list *l, struct mcd_slice *s)
{
    if (s->again_prev != NULL)
        s->again_prev->again_next = s->again_next;
    else
        l->head = s->again_next;
    if (s->again_next != NULL)
        s->again_next->again_prev = s->again_prev;
    else
        l->tail = s->again_prev;
}
