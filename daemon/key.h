/* SPDX-License-Identifier: Apache-2.0 */
/* A key of the configuration: how its value is read, checked, printed and explained. */
#ifndef MCD_KEY_H
#define MCD_KEY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define KiB(n) ((uint64_t)(n) << 10)
#define MiB(n) ((uint64_t)(n) << 20)
#define GiB(n) ((uint64_t)(n) << 30)
#define TiB(n) ((uint64_t)(n) << 40)

enum mcd_key_kind { MCD_KEY_TEXT, MCD_KEY_NUMBER, MCD_KEY_OCTAL, MCD_KEY_SIZE, MCD_KEY_CHOICE };

struct mcd_key {
    const char *section, *name;
    enum mcd_key_kind kind;
    size_t offset; /* of its value, in what holds the section: text, or an uint64_t */
    const char *initial;
    uint64_t min, max;
    const char *choices; /* CHOICE: words parted by '|', the value is the index */
    const char *unit;
    const char *help;
    bool live; /* SIGHUP applies a change; others wait for the next start */
};

/* Sets the key's value in what `base` points to. `section` is what an error names. -EINVAL. */
int mcd_key_assign(void *base, const char *section, const struct mcd_key *k, const char *text,
                   char *error, size_t error_size);
void mcd_key_format(const void *base, const struct mcd_key *k, char *out, size_t size);
bool mcd_key_differs(const void *a, const void *b, const struct mcd_key *k);
void mcd_key_copy(void *to, const void *from, const struct mcd_key *k);
/* One entry of the sample file, and of the manual page (roff). */
void mcd_key_sample(const struct mcd_key *k, const char *before, FILE *out);
void mcd_key_man(const struct mcd_key *k, FILE *out);

#endif
