/* SPDX-License-Identifier: Apache-2.0 */
/* Objects and events as JSON, written to a stream: any thread. */
#ifndef MCD_STORE_JSON_H
#define MCD_STORE_JSON_H

#include <stdio.h>

#include "config.h"
#include "store/object/events.h"
#include "store/object/store.h"

/* "key":"..." where it is UTF-8 without control characters, else "key_hex":"...". */
void mcd_json_key(FILE *out, const void *bytes, size_t length);
/* As in struct mcs_object_result. */
void mcd_json_version(FILE *out, const struct mco_version *v);
/* A tenant by its rule's name, else by its uid; of another host's, or one that is forgotten, its id. */
void mcd_store_tenant_name(const struct mcd_config *c, uint64_t id, char out[MCD_TENANT_NAME_MAX]);
/* now: ns of CLOCK_MONOTONIC; times come out as ms that are left. config: whose tenants have names. */
void mcd_json_object(FILE *out, const struct mcd_config *c, const struct mco_listed *o,
                     uint64_t now);
/*
 * Up to `limit` events from number `from` on: {"epoch","first","next","lost","events"}. tenant: whose; UINT64_MAX: all. epoch: the
 * life that counts them; a reader who sees another one lists the objects anew.
 */
void mcd_json_events(FILE *out, const struct mcd_config *c, struct mco_events *e, uint64_t epoch,
                     uint64_t tenant, uint64_t from, uint64_t limit);

#endif
