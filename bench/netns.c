/* SPDX-License-Identifier: Apache-2.0 */
#include "netns.h"

#include <errno.h>
#include <sched.h>
#include <stddef.h>
#include <sys/mount.h>

int netns_settle(int fd)
{
    if (setns(fd, CLONE_NEWNET) != 0)
        return -errno;
    /* a /sys shows the namespace it was mounted in; where none can be mounted it stays as it is */
    if (unshare(CLONE_NEWNS) == 0 && mount("", "/", "none", MS_SLAVE | MS_REC, NULL) == 0)
        (void)mount("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    return 0;
}
