/* SPDX-License-Identifier: Apache-2.0 */
/* What an agent tells about itself, through `mcshm` beside this program (or in PATH). */
#ifndef BENCH_TELL_H
#define BENCH_TELL_H

#include <cjson/cJSON.h>

/* `mcshm --json WORD [MORE]` of the agent at the socket; more may be NULL. The document is freed by
 * the caller; NULL, said already, when there is none. */
cJSON *tell_ask(const char *socket, const char *word, const char *more);

#endif
