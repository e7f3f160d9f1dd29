/* SPDX-License-Identifier: Apache-2.0 */
/* CRC32C (Castagnoli), as iSCSI and SCTP compute it. */
#ifndef MCT_CRC32C_H
#define MCT_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Continues `crc` (0 at the start) with `size` bytes: pieces give the same as the whole. */
uint32_t mct_crc32c(uint32_t crc, const void *data, size_t size);

#endif
