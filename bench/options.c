/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include "say.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool options_take(int option, struct options_common *out)
{
    switch (option) {
    case OPTION_JSON:
        out->json = true;
        return true;
    case OPTION_SOCKET:
        out->socket = optarg;
        return true;
    case OPTION_MCSHMD:
        out->mcshmd = optarg;
        return true;
    default:
        return false;
    }
}

int options_end(const char *command, int argc, char **argv)
{
    if (optind < argc)
        return say_error(-EINVAL, "%s: unexpected argument %s; see --help", command, argv[optind]);
    return 0;
}

int options_count(const char *name, const char *text, uint64_t min, uint64_t max, uint64_t *out)
{
    char *end;

    errno = 0;
    *out = strtoull(text, &end, 10);
    if (!isdigit((unsigned char)text[0]) || *end != '\0' || errno != 0 || *out < min || *out > max)
        return say_error(-EINVAL, "--%s %s: expected a whole number from %" PRIu64 " to %" PRIu64,
                         name, text, min, max);
    return 0;
}

int options_real(const char *name, const char *text, double min, double max, double *out)
{
    char *end;

    *out = strtod(text, &end);
    if (end == text || *end != '\0' || !(*out >= min && *out <= max))
        return say_error(-EINVAL, "--%s %s: expected a number from %g to %g", name, text, min, max);
    return 0;
}

const char *options_bytes(const char *text, uint64_t *out)
{
    unsigned shift = 0;
    char *end;

    if (!isdigit((unsigned char)text[0]))
        return NULL;
    errno = 0;
    *out = strtoull(text, &end, 10);
    if (*end == 'K' || *end == 'k')
        shift = 10;
    else if (*end == 'M' || *end == 'm')
        shift = 20;
    else if (*end == 'G' || *end == 'g')
        shift = 30;
    if (errno != 0 || *out > UINT64_MAX >> shift)
        return NULL;
    *out <<= shift;
    return shift != 0 ? end + 1 : end;
}

int options_setting(const char *text, char *lines, size_t size)
{
    const char *dot = strchr(text, '.'), *equals = dot != NULL ? strchr(dot, '=') : NULL;
    size_t used = strlen(lines);

    if (equals == NULL || dot == text || equals == dot + 1 || strchr(text, '\n') != NULL ||
        (size_t)snprintf(lines + used, size - used, "[%.*s]\n%.*s = %s\n", (int)(dot - text), text,
                         (int)(equals - dot - 1), dot + 1, equals + 1) >= size - used)
        return say_error(-EINVAL,
                         "--set %s: expected SECTION.KEY=VALUE, all of them together "
                         "in %zu bytes",
                         text, size);
    return 0;
}
