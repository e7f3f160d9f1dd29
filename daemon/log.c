/* SPDX-License-Identifier: Apache-2.0 */
#include "log.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "shm/atomic.h"

#define LIMIT_NS 4000000000LL /* fifteen lines a minute from one place */

/* set by the control thread, read by all; no order with anything else is needed */
static int log_level = MCD_LOG_INFO;

void mcd_log_set_level(int level)
{
    mcs_store_relaxed(&log_level, level);
}

static void write_line(int level, const char *format, va_list ap, unsigned long left_out)
{
    static const char *const words[] = {"error", "warning", "info", "debug"};
    struct pollfd err = {.fd = STDERR_FILENO, .events = POLLOUT};
    char line[1024];
    int saved = errno;
    int n, m;

    n = snprintf(line, sizeof(line), "mcshmd: %s: ", words[level]);
    m = vsnprintf(line + n, sizeof(line) - (size_t)n, format, ap);
    n = m < 0 ? n : n + m;
    if (n < (int)sizeof(line) && left_out != 0) {
        m = snprintf(line + n, sizeof(line) - (size_t)n, " (%lu like it left out)", left_out);
        n = m < 0 ? n : n + m;
    }
    if (n > (int)sizeof(line) - 1)
        n = (int)sizeof(line) - 1;
    line[n++] = '\n';
    /* a pipe that nobody empties must not stop the agent either: the line is lost then */
    while (poll(&err, 1, 0) == 1 && write(STDERR_FILENO, line, (size_t)n) < 0 && errno == EINTR) {
        /* again; any other failure, a full disk or a closed terminal, must not stop the agent */
    }
    errno = saved;
}

void mcd_log(int level, const char *format, ...)
{
    va_list ap;

    if (level > mcs_load_relaxed(&log_level))
        return;
    va_start(ap, format);
    write_line(level, format, ap, 0);
    va_end(ap);
}

void mcd_log_limited_(struct mcd_log_limit *limit, int level, const char *format, ...)
{
    struct timespec ts;
    long long now;
    va_list ap;

    if (level > mcs_load_relaxed(&log_level))
        return;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &ts);
    now = ts.tv_sec * 1000000000LL + ts.tv_nsec;
    /* Threads that race here may both write or miscount a line, nothing worse. */
    if (mcs_load_relaxed(&limit->last_ns) != 0 &&
        now - mcs_load_relaxed(&limit->last_ns) < LIMIT_NS) {
        mcs_count(&limit->left_out, 1);
        return;
    }
    mcs_store_relaxed(&limit->last_ns, now);
    va_start(ap, format);
    write_line(level, format, ap, mcs_exchange(&limit->left_out, 0));
    va_end(ap);
}
