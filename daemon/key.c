/* SPDX-License-Identifier: Apache-2.0 */
#include "key.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "config.h"

static void format_size(uint64_t v, char *out, size_t size)
{
    static const char suffix[] = "\0KMGT";
    unsigned i = 0;

    while (i < 4 && v != 0 && v % 1024 == 0) {
        v /= 1024;
        i++;
    }
    snprintf(out, size, "%llu%.1s", (unsigned long long)v, suffix + i);
}

static void format_range(const struct mcd_key *k, char *out, size_t size)
{
    char a[32], b[32];

    switch (k->kind) {
    case MCD_KEY_TEXT:
        snprintf(out, size, "%llu to %llu characters", (unsigned long long)k->min,
                 (unsigned long long)k->max);
        break;
    case MCD_KEY_CHOICE:
        snprintf(out, size, "%s", k->choices);
        break;
    case MCD_KEY_OCTAL:
        snprintf(out, size, "0 to 0%llo", (unsigned long long)k->max);
        break;
    case MCD_KEY_NUMBER:
        snprintf(out, size, "%llu to %llu", (unsigned long long)k->min, (unsigned long long)k->max);
        break;
    case MCD_KEY_SIZE:
        format_size(k->min, a, sizeof(a));
        format_size(k->max, b, sizeof(b));
        snprintf(out, size, "%s to %s", a, b);
        break;
    }
}

static int parse_number(const struct mcd_key *k, const char *text, uint64_t *out)
{
    unsigned shift = 0;
    char *end;

    if (text[0] < '0' || text[0] > '9')
        return -EINVAL;
    errno = 0;
    *out = strtoull(text, &end, k->kind == MCD_KEY_OCTAL ? 8 : 10);
    if (errno != 0 || end == text)
        return -EINVAL;
    if (k->kind == MCD_KEY_SIZE && *end != '\0') {
        static const char suffixes[] = "KMGT";
        const char *p = strchr(suffixes, *end);

        if (p == NULL)
            return -EINVAL;
        shift = 10 * (unsigned)(p - suffixes + 1);
        end++;
    }
    if (*end != '\0' || *out > UINT64_MAX >> shift)
        return -EINVAL;
    *out <<= shift;
    return *out < k->min || *out > k->max ? -ERANGE : 0;
}

static int parse_choice(const struct mcd_key *k, const char *text, uint64_t *out)
{
    const char *p = k->choices;

    for (uint64_t i = 0;; i++) {
        size_t n = strcspn(p, "|");

        if (strlen(text) == n && strncmp(p, text, n) == 0) {
            *out = i;
            return 0;
        }
        if (p[n] == '\0')
            return -EINVAL;
        p += n + 1;
    }
}

int mcd_key_assign(void *base, const char *section, const struct mcd_key *k, const char *text,
                   char *error, size_t error_size)
{
    char range[160];
    uint64_t v = 0;
    int res = 0;

    if (k->kind == MCD_KEY_TEXT) {
        size_t n = strlen(text);

        if (n < k->min || n > k->max)
            res = -ERANGE;
        else
            memcpy((char *)base + k->offset, text, n + 1);
    } else {
        res = k->kind == MCD_KEY_CHOICE ? parse_choice(k, text, &v) : parse_number(k, text, &v);
        if (res == 0)
            memcpy((char *)base + k->offset, &v, sizeof(v));
    }
    if (res != 0) {
        format_range(k, range, sizeof(range));
        snprintf(error, error_size, "[%s] %s = '%s': want %s (%s)", section, k->name, text, range,
                 k->unit);
        res = -EINVAL;
    }
    return res;
}

void mcd_key_format(const void *base, const struct mcd_key *k, char *out, size_t size)
{
    uint64_t v;

    if (k->kind == MCD_KEY_TEXT) {
        snprintf(out, size, "%s", (const char *)base + k->offset);
        return;
    }
    memcpy(&v, (const char *)base + k->offset, sizeof(v));
    if (k->kind == MCD_KEY_SIZE) {
        format_size(v, out, size);
    } else if (k->kind == MCD_KEY_OCTAL) {
        snprintf(out, size, "0%llo", (unsigned long long)v);
    } else if (k->kind == MCD_KEY_CHOICE) {
        const char *p = k->choices;

        for (; v != 0; v--)
            p += strcspn(p, "|") + 1;
        snprintf(out, size, "%.*s", (int)strcspn(p, "|"), p);
    } else {
        snprintf(out, size, "%llu", (unsigned long long)v);
    }
}

static size_t value_size(const struct mcd_key *k)
{
    return k->kind == MCD_KEY_TEXT ? MCD_TEXT_MAX : sizeof(uint64_t);
}

bool mcd_key_differs(const void *a, const void *b, const struct mcd_key *k)
{
    const char *x = (const char *)a + k->offset, *y = (const char *)b + k->offset;

    return k->kind == MCD_KEY_TEXT ? strcmp(x, y) != 0 : memcmp(x, y, value_size(k)) != 0;
}

void mcd_key_copy(void *to, const void *from, const struct mcd_key *k)
{
    memcpy((char *)to + k->offset, (const char *)from + k->offset, value_size(k));
}

void mcd_key_sample(const struct mcd_key *k, const char *before, FILE *out)
{
    char range[160];

    format_range(k, range, sizeof(range));
    fprintf(out, "; %s\n; %s: %s%s\n%s%s = %s\n", k->help, k->unit, range, k->live ? "; live" : "",
            before, k->name, k->initial);
}

void mcd_key_man(const struct mcd_key *k, FILE *out)
{
    char range[160];

    format_range(k, range, sizeof(range));
    fprintf(out, ".TP\n.B %s\n", k->name);
    mcd_config_man_text(k->help, out);
    fprintf(out, ".\n.br\n");
    mcd_config_man_text(k->unit, out);
    fputs(", ", out);
    mcd_config_man_text(range, out);
    fputs("; ", out);
    mcd_config_man_text(k->initial[0] != '\0' ? "default " : "empty by default", out);
    mcd_config_man_text(k->initial, out);
    fputs(k->live ? "; live\n" : "\n", out);
}
