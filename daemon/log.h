/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent's log: one line an event on stderr, for systemd or whoever started it.  No place writes more
 * than MCD_LOG_A_MINUTE lines a minute; how many it left out is said when that minute is over.  Lines of
 * level debug are for who asked for them, and are all written.
 */
#ifndef MCD_LOG_H
#define MCD_LOG_H

#include <stdarg.h>
#include <stdint.h>

enum mcd_log_level { MCD_LOG_ERROR, MCD_LOG_WARNING, MCD_LOG_INFO, MCD_LOG_DEBUG };

#define MCD_LOG_A_MINUTE 18u /* and the line that tells how many were left out, and a spare one */

/* One place that logs. Static: it is remembered. */
struct mcd_log_limit {
    uint64_t since_ns; /* of the minute that is counted; 0: none yet */
    uint32_t written;
    uint32_t left_out;
    int level;
    const char *format;         /* of the lines left out */
    struct mcd_log_limit *next; /* of those that ever left one out */
    uint32_t listed;
};

/* Opens what is closed of descriptors 0 to 2, so that no other file becomes stderr; finds out whether
 * stderr is systemd's journal, which then gets levels ("<4>") instead of words. */
void mcd_log_init(void);
void mcd_log_set_level(int level);
/* The program that each line names, "mcshmd" before. Static; before there are other threads. */
void mcd_log_set_name(const char *name);
/* ns; NULL: the coarse monotonic clock. For tests. */
void mcd_log_set_clock(uint64_t (*clock)(void));

/* Never blocks for long and never fails: a line that cannot be written is dropped. */
void mcd_log_(struct mcd_log_limit *limit, int level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* For those who take a function: the format, which must be static, stands for the place. */
void mcd_log_line(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));
void mcd_log_line_v(int level, const char *format, va_list ap)
    __attribute__((format(printf, 2, 0)));
/* The same limit for each cause by itself, wherever it is told: a static text, which also stands for the lines
 * left out. One that comes often hides no other. */
void mcd_log_cause(const char *cause, int level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Tells of lines left out whose minute is over. Once a second, control thread. */
void mcd_log_flush(void);

#define mcd_log(level, ...)                                                                        \
    do {                                                                                           \
        static struct mcd_log_limit limit_;                                                        \
        mcd_log_(&limit_, level, __VA_ARGS__);                                                     \
    } while (0)

#define mcd_error(...) mcd_log(MCD_LOG_ERROR, __VA_ARGS__)
#define mcd_warning(...) mcd_log(MCD_LOG_WARNING, __VA_ARGS__)
#define mcd_info(...) mcd_log(MCD_LOG_INFO, __VA_ARGS__)
#define mcd_debug(...) mcd_log(MCD_LOG_DEBUG, __VA_ARGS__)
/* What other processes or hosts can cause; the same limit. */
#define mcd_log_limited(level, ...) mcd_log(level, __VA_ARGS__)

#endif
