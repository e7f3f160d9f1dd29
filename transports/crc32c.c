/* SPDX-License-Identifier: Apache-2.0 */
/* CRC32C by ISA-L, which takes the processor's best way at run time. */
#include <isa-l/crc.h>
#include <limits.h>

#include "transports/crc32c.h"

uint32_t mct_crc32c(uint32_t crc, const void *data, size_t size)
{
    unsigned char *at =
        (unsigned char *)(uintptr_t)data; /* ISA-L does not say const, but reads only */
    uint32_t state = ~crc;                /* its state is the register itself */

    while (size > 0) {
        int n = size > INT_MAX ? INT_MAX : (int)size;

        state = crc32_iscsi(at, n, state);
        at += n;
        size -= (size_t)n;
    }
    return ~state;
}
