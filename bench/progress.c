/* SPDX-License-Identifier: Apache-2.0 */
#include "progress.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define WIDTH 40u

void progress_show(uint64_t done, uint64_t total, const char *unit)
{
    char bar[WIDTH + 1];
    unsigned full = total > 0 ? (unsigned)(done * WIDTH / total) : 0;

    if (!isatty(STDERR_FILENO))
        return;
    if (full > WIDTH)
        full = WIDTH;
    memset(bar, '#', full);
    memset(bar + full, '.', WIDTH - full);
    bar[WIDTH] = '\0';
    fprintf(stderr, "\r[%s] %" PRIu64 " of %" PRIu64 " %s", bar, done, total, unit);
    fflush(stderr);
}

void progress_end(void)
{
    if (isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
}
