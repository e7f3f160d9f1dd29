/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON from a service that need not mean well. Text is scanned before cJSON sees it: nesting and
 * the number of values are bounded, so that what parsing costs is bounded by the text's size.
 */
#ifndef MCM_JSON_H
#define MCM_JSON_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MCM_JSON_DEPTH 32u
#define MCM_JSON_VALUES 65536u

/* Looks for the end of one object in a stream of them. */
struct mcm_json_scan {
    unsigned depth;
    size_t values; /* commas and brackets: at least as many as values, less one */
    bool in_string, escaped;
};

/* Takes bytes until the object that began is closed: returns how many it took, with *closed set
 * when the last of them closed it. White space between objects is taken. -EBADMSG: it nests
 * deeper, or has more values, than the limits above, or begins with no '{'. */
long mcm_json_scan(struct mcm_json_scan *scan, const char *text, size_t size, bool *closed);

/* One object and nothing but white space after it. cJSON_Delete() it. -EBADMSG, -ENOMEM. */
int mcm_json_parse(const char *text, size_t size, cJSON **out);

/* Members. A member that is missing gives the default (proto3 leaves zeros out); one of the wrong
 * type or range sets *bad. Objects may be NULL, as missing ones are. */
const cJSON *mcm_json_object(const cJSON *o, const char *name, bool *bad);
const cJSON *mcm_json_array(const cJSON *o, const char *name, bool *bad);
/* NULL when missing. */
const char *mcm_json_string(const cJSON *o, const char *name, bool *bad);
/* A number, or digits in a string as 64-bit ones are written. Negative ones are refused. */
uint64_t mcm_json_u64(const cJSON *o, const char *name, bool *bad);
/* The same, negative or not: lease ids. */
int64_t mcm_json_i64(const cJSON *o, const char *name, bool *bad);
bool mcm_json_bool(const cJSON *o, const char *name, bool *bad);

#endif
