/* SPDX-License-Identifier: Apache-2.0 */
#include "internal.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char last_error[512];

MCSHM_API const char *mcshm_version(void)
{
    return MCSHM_VERSION;
}

MCSHM_API const char *mcshm_last_error(const mcshm *c)
{
    (void)c;
    return last_error;
}

mcshm_status mcl_fail(mcshm_status status, const char *format, ...)
{
    va_list ap;

    va_start(ap, format);
    vsnprintf(last_error, sizeof(last_error), format, ap);
    va_end(ap);
    return status;
}

mcshm_status mcl_refuse(const uint32_t *guard)
{
    if (guard == NULL)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "the handle is NULL");
    return mcl_fail(MCSHM_FORKED, "the handle belongs to the process that forked this one: connect "
                                  "again here");
}

MCSHM_API const char *mcshm_strerror(mcshm_status status)
{
    static const char *const texts[] = {
#define TEXT(name, value, text) [value] = text,
        MCS_STATUS_LIST(TEXT)
#undef TEXT
    };

    if ((unsigned)status >= sizeof(texts) / sizeof(texts[0]))
        return "unknown status";
    return texts[status];
}

MCSHM_API const char *mcshm_state_name(mcshm_state state)
{
    static const char *const names[] = {"WAITING",   "PENDING", "INVALID", "CANCELED",
                                        "COMPLETED", "TIMEOUT", "FAILED"};

    static_assert(sizeof(names) / sizeof(names[0]) == MCS_STATE_COUNT, "a name for each state");
    return (unsigned)state < MCS_STATE_COUNT ? names[state] : "UNKNOWN";
}

MCSHM_API const char *mcshm_path_name(mcshm_path path)
{
    static const char *const names[] = {"none", "local", "caller", "staged",  "tcp",
                                        "rdma", "cuda",  "file",   "mooncake"};

    static_assert(sizeof(names) / sizeof(names[0]) == MCS_PATH_COUNT, "a name for each path");
    return (unsigned)path < MCS_PATH_COUNT ? names[path] : "unknown";
}

/*
 * The public constants are the contract's. The list's VERSION is MCSHM_VERSION_MISMATCH in
 * public, since MCSHM_VERSION is the library's version; from here on the macro may go.
 */
#undef MCSHM_VERSION
#define MCSHM_VERSION MCSHM_VERSION_MISMATCH
#define SAME(name, value, text) static_assert((int)MCSHM_##name == (value), "public " #name);
MCS_STATUS_LIST(SAME)
#undef SAME

static_assert((int)MCSHM_STATE_FAILED == MCS_STATE_FAILED &&
                  (int)MCSHM_STATE_COMPLETED == MCS_STATE_COMPLETED,
              "public states");
static_assert((int)MCSHM_PATH_CALLER == MCS_PATH_CALLER &&
                  (int)MCSHM_PATH_MOONCAKE == MCS_PATH_MOONCAKE,
              "public paths");
static_assert((int)MCSHM_READ == MCS_OP_READ && (int)MCSHM_WRITE == MCS_OP_WRITE,
              "public operations");
static_assert((int)MCSHM_CLASS_BACKGROUND == MCS_CLASS_BACKGROUND, "public classes");
static_assert(MCSHM_ACCESS_READ == MCS_ACCESS_READ && MCSHM_ACCESS_WRITE == MCS_ACCESS_WRITE &&
                  MCSHM_ACCESS_MAP_READ == MCS_ACCESS_MAP_READ &&
                  MCSHM_ACCESS_MAP_WRITE == MCS_ACCESS_MAP_WRITE &&
                  MCSHM_SEGMENT_PUBLIC == MCS_SEGMENT_PUBLIC,
              "public rights");
static_assert((int)MCSHM_QUERY_SESSIONS == MCS_QUERY_SESSIONS, "public queries");
static_assert(sizeof(mcshm_piece) == sizeof(struct mcs_piece) &&
                  offsetof(mcshm_piece, remote_offset) == offsetof(struct mcs_piece, remote) &&
                  offsetof(mcshm_piece, length) == offsetof(struct mcs_piece, length),
              "pieces are copied as they are");
