/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Regular expressions of strangers, which ask for whatever time and memory they like: PCRE2, whose every use of
 * either is limited here.  Its syntax, of which POSIX's extended expressions are a part, byte by byte.
 */
#ifndef MCO_MATCH_H
#define MCO_MATCH_H

#include <stdbool.h>
#include <stddef.h>

struct mco_match;

/* 0; -EINVAL, with a sentence in error; -E2BIG: it is larger than what is compiled here, likewise; -ENOMEM. */
int mco_match_create(const char *text, size_t length, struct mco_match **out, char *error,
                     size_t error_size);
void mco_match_destroy(struct mco_match *m); /* NULL is fine */
/* Does it match anywhere in the key, which has bytes of any kind? One thread at a time. */
bool mco_match(struct mco_match *m, const void *key, size_t length);
/* Has it met a key with which it was not through in time, so that "no" was no answer? */
bool mco_match_gave_up(const struct mco_match *m);

#endif
