/* SPDX-License-Identifier: Apache-2.0 */
/* The folders and files in which Linux says what is known of RDMA devices. */
#include "inside.h"

char *fake_sysfs_dir;

void fake_sysfs_update(void)
{
}
