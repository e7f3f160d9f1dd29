/* SPDX-License-Identifier: Apache-2.0 */
#include "say.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

static void say(const char *format, va_list args)
{
    fputs("mcshm-bench: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
}

int say_error(int err, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    say(format, args);
    va_end(args);
    return err;
}

int say_status(const mcshm *c, mcshm_status status, const char *what)
{
    const char *sentence = mcshm_last_error(c);

    if (sentence[0] == '\0')
        return say_error(-EIO, "%s: %s", what, mcshm_strerror(status));
    return say_error(-EIO, "%s: %s (%s)", what, mcshm_strerror(status), sentence);
}

void say_note(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    say(format, args);
    va_end(args);
}
