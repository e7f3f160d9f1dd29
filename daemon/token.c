/* SPDX-License-Identifier: Apache-2.0 */
/* Leave for data connections: given over an authenticated control connection, good once and for ten
 * seconds. */
#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <stdlib.h>
#include <string.h>

#include "cluster.h"

#define TOKEN_NS UINT64_C(10000000000)
#define TOKENS_OF_ONE (MCD_TOKENS_MAX / 4) /* no peer takes all */

static void expire(struct mcd_cluster *c, uint64_t now)
{
    struct mcd_token **link = &c->tokens;

    while (*link != NULL) {
        struct mcd_token *t = *link;

        if (t->expires > now) {
            link = &t->next;
            continue;
        }
        *link = t->next;
        c->ntokens--;
        free(t);
    }
}

int mcd_token_create(struct mcd_cluster *c, struct mcd_peer *p, struct mcd_visitor *v,
                     uint8_t out[MCT_TCP_TOKEN])
{
    uint64_t now = mcd_now_ns();
    struct mcd_token *t;
    unsigned of_one = 0;

    expire(c, now);
    for (t = c->tokens; t != NULL; t = t->next)
        of_one += t->peer == p;
    if (c->ntokens >= MCD_TOKENS_MAX || of_one >= TOKENS_OF_ONE)
        return -ENOSPC;
    t = calloc(1, sizeof(*t));
    if (t == NULL)
        return -ENOMEM;
    if (RAND_bytes(t->bytes, sizeof(t->bytes)) != 1) {
        free(t);
        return -EIO;
    }
    t->peer = p;
    t->visitor = v;
    t->expires = now + TOKEN_NS;
    t->next = c->tokens;
    c->tokens = t;
    c->ntokens++;
    memcpy(out, t->bytes, sizeof(t->bytes));
    return 0;
}

struct mcd_token *mcd_token_take(struct mcd_cluster *c, const uint8_t bytes[MCT_TCP_TOKEN])
{
    struct mcd_token **link = &c->tokens, *t;

    expire(c, mcd_now_ns());
    /* in constant time, so that nobody learns one byte by byte */
    while (*link != NULL && CRYPTO_memcmp((*link)->bytes, bytes, MCT_TCP_TOKEN) != 0)
        link = &(*link)->next;
    t = *link;
    if (t != NULL) {
        *link = t->next;
        c->ntokens--;
    }
    return t;
}

void mcd_tokens_revoke(struct mcd_cluster *c, const struct mcd_peer *p, const struct mcd_visitor *v)
{
    struct mcd_token **link = &c->tokens;

    while (*link != NULL) {
        struct mcd_token *t = *link;

        if (t->peer != p || (v != NULL && t->visitor != v)) {
            link = &t->next;
            continue;
        }
        *link = t->next;
        c->ntokens--;
        free(t);
    }
}
