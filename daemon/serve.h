/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the target role share. Engine's thread only. */
#ifndef MCD_SERVE_H
#define MCD_SERVE_H

#include "remote.h"
#include "transports/transport.h"

/* The buffer that a visitor names and may use so; an enum mcs_status. Good for this turn. */
uint16_t mcd_serve_find(const struct mcd_engine *g, const struct mcd_visitor *v,
                        const struct mct_request *r, const struct mcd_buffer **out);

#endif
