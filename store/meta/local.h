/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Back ends that ask nobody. They answer a request at once, in r->res, r->found and r->text, from
 * what this agent registered itself (`table`) or from the name alone.
 */
#ifndef MCM_LOCAL_H
#define MCM_LOCAL_H

#include "service.h"

/* memory: the segments of this process are all there are. */
void mcm_memory_answer(struct mcm_cache *table, struct mcm_request *r);
/* p2p: "HOST:PORT/NAME" says where NAME is; a plain name is this agent's own or unknown. */
void mcm_p2p_answer(struct mcm_cache *table, struct mcm_request *r);
/* The answer to an explicit name, whatever the back end; false: it is none. */
bool mcm_p2p_explicit(struct mcm_request *r, const char *name);

#endif
