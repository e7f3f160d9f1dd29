/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A dmabuf: an extent of GPU memory as a descriptor that RDMA devices take.  The driver makes it in its own time.
 * Control thread only.
 */
#ifndef MCD_DMABUF_H
#define MCD_DMABUF_H

#include <stdint.h>

struct mcd_extent;
struct mcd_dmabuf;
struct mct_cuda;

/* res: 0, or a negative errno with a sentence. */
typedef void mcd_dmabuf_done(void *context, int res, const char *text);

/*
 * Begins to make one of an extent, which stays until it is destroyed. done is called, from mct_cuda_poll(). 0; -ENOMEM; -EOPNOTSUPP: no device takes memory of this GPU; then, as in all errors, *out is NULL.
 */
int mcd_dmabuf_create(struct mct_cuda *cuda, const struct mcd_extent *e, mcd_dmabuf_done *done,
                      void *context, struct mcd_dmabuf **out);
/* Once it is made: its descriptor, which stays its own. */
int mcd_dmabuf_fd(const struct mcd_dmabuf *d);
/* After done(). NULL: nothing. */
void mcd_dmabuf_destroy(struct mcd_dmabuf *d);

#endif
