/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extended regular expressions of strangers.  regexec() takes as long and regcomp() as much memory as a text
 * asks for; this takes time in proportion to the key and the compiled expression, and that is bounded.
 *
 * As POSIX has them in the C locale, byte by byte: . [set] [^set] [[:class:]] ( ) | * + ? {m,n} ^ $ and \ before what is not
 * a letter or digit. No back references: they are what cannot be bounded.
 */
#ifndef MCO_MATCH_H
#define MCO_MATCH_H

#include <stdbool.h>
#include <stddef.h>

struct mco_match;

/* 0; -EINVAL, with a sentence in error; -E2BIG: it grows beyond all bounds, likewise; -ENOMEM. */
int mco_match_create(const char *text, size_t length, struct mco_match **out, char *error,
                     size_t error_size);
void mco_match_destroy(struct mco_match *m);
/* Does it match anywhere in the key? Never one with a NUL. One thread at a time. */
bool mco_match(struct mco_match *m, const void *key, size_t length);

#endif
