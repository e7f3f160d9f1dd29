/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's log: one line an event on stderr, for systemd or whoever started it. */
#ifndef MCD_LOG_H
#define MCD_LOG_H

enum mcd_log_level { MCD_LOG_ERROR, MCD_LOG_WARNING, MCD_LOG_INFO, MCD_LOG_DEBUG };

void mcd_log_set_level(int level);
/* Never blocks for long and never fails: a line that cannot be written is dropped. */
void mcd_log(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* At most one line in four seconds from one place; the next line tells how many were left out. */
#define mcd_log_limited(level, ...)                                                                \
    do {                                                                                           \
        static struct mcd_log_limit limit_;                                                        \
        mcd_log_limited_(&limit_, level, __VA_ARGS__);                                             \
    } while (0)

struct mcd_log_limit {
    long long last_ns;
    unsigned long left_out;
};
void mcd_log_limited_(struct mcd_log_limit *limit, int level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define mcd_error(...) mcd_log(MCD_LOG_ERROR, __VA_ARGS__)
#define mcd_warning(...) mcd_log(MCD_LOG_WARNING, __VA_ARGS__)
#define mcd_info(...) mcd_log(MCD_LOG_INFO, __VA_ARGS__)
#define mcd_debug(...) mcd_log(MCD_LOG_DEBUG, __VA_ARGS__)

#endif
