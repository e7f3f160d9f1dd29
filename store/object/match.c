/* SPDX-License-Identifier: Apache-2.0 */
#include "match.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <errno.h>
#include <pcre2.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define LENGTH_MAX 4096u /* bytes of a text, as a message carries */
#define NEST_MAX 100u    /* ( within each other */
/* Of one key: some milliseconds, and as much memory as nobody misses. */
#define STEPS_MAX 200000u
#define DEPTH_MAX 20000u
#define HEAP_MAX_KIB 4096u

struct mco_match {
    pcre2_code *code;
    pcre2_match_context *limits;
    pcre2_match_data *data;
    bool gave_up;
};

static int compile(struct mco_match *m, const char *text, size_t length, char *error,
                   size_t error_size)
{
    /* a key is one line, and its bytes are no characters; \C reads beyond what the library checks */
    const uint32_t options = PCRE2_DOTALL | PCRE2_DOLLAR_ENDONLY | PCRE2_NEVER_UTF |
                             PCRE2_NEVER_UCP | PCRE2_NEVER_BACKSLASH_C;
    pcre2_compile_context *c = pcre2_compile_context_create(NULL);
    PCRE2_UCHAR what[128] = "";
    PCRE2_SIZE at = 0;
    int code = 0;

    if (c == NULL)
        return -ENOMEM;
    pcre2_set_max_pattern_length(c, LENGTH_MAX);
    pcre2_set_parens_nest_limit(c, NEST_MAX);
    m->code = pcre2_compile((PCRE2_SPTR)text, length, options, &code, &at, c);
    pcre2_compile_context_free(c);
    if (m->code != NULL)
        return 0;
    if (code == PCRE2_ERROR_HEAP_FAILED)
        return -ENOMEM;
    pcre2_get_error_message(code, what, sizeof(what));
    snprintf(error, error_size, "%s, at byte %zu", (const char *)what, (size_t)at);
    return code == PCRE2_ERROR_PATTERN_TOO_LARGE || code == PCRE2_ERROR_PATTERN_STRING_TOO_LONG ||
                   code == PCRE2_ERROR_PARENTHESES_NEST_TOO_DEEP
               ? -E2BIG
               : -EINVAL;
}

int mco_match_create(const char *text, size_t length, struct mco_match **out, char *error,
                     size_t error_size)
{
    struct mco_match *m = calloc(1, sizeof(*m));
    int res = m == NULL ? -ENOMEM : compile(m, text, length, error, error_size);

    if (res == 0) {
        m->limits = pcre2_match_context_create(NULL);
        m->data = pcre2_match_data_create(1, NULL); /* nobody asks where it matches */
        res = m->limits != NULL && m->data != NULL ? 0 : -ENOMEM;
    }
    if (res != 0) {
        mco_match_destroy(m);
        return res;
    }
    pcre2_set_match_limit(m->limits, STEPS_MAX);
    pcre2_set_depth_limit(m->limits, DEPTH_MAX);
    pcre2_set_heap_limit(m->limits, HEAP_MAX_KIB);
    *out = m;
    return 0;
}

void mco_match_destroy(struct mco_match *m)
{
    if (m == NULL)
        return;
    pcre2_match_data_free(m->data);
    pcre2_match_context_free(m->limits);
    pcre2_code_free(m->code);
    free(m);
}

bool mco_match(struct mco_match *m, const void *key, size_t length)
{
    int res = pcre2_match(m->code, key, length, 0, 0, m->data, m->limits);

    m->gave_up = m->gave_up || (res < 0 && res != PCRE2_ERROR_NOMATCH);
    return res >= 0;
}

bool mco_match_gave_up(const struct mco_match *m)
{
    return m->gave_up;
}
