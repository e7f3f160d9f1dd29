/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the library exports, under the driver's names.  Which functions there are is decided when they are looked up: those
 * that FAKE_CUDA_MISSING names, with commas between, are not.
 */
#include "inside.h"

#include <stdlib.h>
#include <string.h>

static bool is_missing(const char *name)
{
    const char *text = getenv("FAKE_CUDA_MISSING"), *end;

    for (; text != NULL && *text != '\0'; text = *end == ',' ? end + 1 : end) {
        end = strchrnul(text, ',');
        if ((size_t)(end - text) == strlen(name) && memcmp(text, name, strlen(name)) == 0)
            return true;
    }
    return false;
}

#define FAKE_EXPORT(required, field, symbol, arguments)                                            \
    static CUresult(*choose_##symbol(void)) arguments                                              \
    {                                                                                              \
        return is_missing(#symbol) ? NULL : fake_##symbol;                                         \
    }                                                                                              \
    CUresult export_##symbol arguments __asm__(#symbol) __attribute__((ifunc("choose_" #symbol)));
MCS_CUDA_FUNCTIONS(FAKE_EXPORT)
FAKE_MORE_FUNCTIONS(FAKE_EXPORT)
