/* SPDX-License-Identifier: Apache-2.0 */
/* Names of segments and the text form of their records. */
#ifndef MCM_RECORD_H
#define MCM_RECORD_H

#include "meta.h"
#include "text.h"

/* "HOST:PORT/NAME": splits it. false: it is no such name. `agent` has MCM_ADDRESS_MAX bytes, `name`
 * MCM_NAME_MAX; what does not fit or is no good name gives false as well. */
bool mcm_explicit_name(const char *text, char *agent, char *name);

/* What a record carries for other agents: wall-clock seconds. */
struct mcm_times {
    uint64_t since;          /* registered first */
    uint64_t renewed, ttl_s; /* written last, and how long that holds; 0: a lease tells */
};

/* A record as JSON. The same record and times always give the same bytes: they are compared. */
void mcm_record_encode(const struct mcm_record *r, const struct mcm_times *t, struct mcm_text *out);
/* -EBADMSG: no record, or not that of `name`. */
int mcm_record_decode(const char *text, size_t size, const char *name, struct mcm_record *out,
                      struct mcm_times *times);
/* One sentence: who has the name, since when, and what to do. */
void mcm_record_held(const struct mcm_record *r, const struct mcm_times *t, char *text,
                     size_t size);

#endif
