/* SPDX-License-Identifier: Apache-2.0 */
#include "location.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define ORDINAL_MAX 1023u

bool location_is_gpu(const char *location)
{
    return location != NULL && strncmp(location, "cuda:", 5) == 0;
}

int location_parse(const char *location, int *ordinal, struct mcs_gpu_id *id)
{
    char *end;
    unsigned long n;

    if (!location_is_gpu(location))
        return -EINVAL;
    location += 5;
    if (strncmp(location, "GPU-", 4) == 0 || strncmp(location, "MIG-", 4) == 0) {
        *ordinal = -1;
        return mcs_gpu_id_parse(location, id);
    }
    if (!isdigit((unsigned char)location[0]))
        return -EINVAL;
    n = strtoul(location, &end, 10);
    if (*end != '\0' || n > ORDINAL_MAX)
        return -EINVAL;
    *ordinal = (int)n;
    return 0;
}
