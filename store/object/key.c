/* SPDX-License-Identifier: Apache-2.0 */
#include "key.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t mco_key_hash(uint64_t tenant, const void *bytes, uint32_t length)
{
    return XXH3_64bits_withSeed(bytes, length, tenant);
}
