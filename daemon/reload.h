/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration read again while the agent runs: by SIGHUP, or by `mcshm reload`. Control thread. */
#ifndef MCD_RELOAD_H
#define MCD_RELOAD_H

#include <stddef.h>

struct cJSON;
struct mcd_agent;

/*
 * Reads the configuration as the start did and takes over the keys that are live. On success *out is
 * an object with the arrays "changed" and "waiting" of key names, cJSON_Delete() it. -EINVAL: nothing
 * has changed, and error has one sentence. `by` is who asks, for the log.
 */
int mcd_reload(struct mcd_agent *a, const char *by, struct cJSON **out, char *error,
               size_t error_size);

/* The same for SIGHUP, whom nobody answers. */
void mcd_reload_for_signal(struct mcd_agent *a);

#endif
