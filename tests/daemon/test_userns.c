/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <errno.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/userns.h"

Test(userns, whole_is_only_the_hosts_own)
{
    cr_assert(mcd_userns_is_whole("         0          0 4294967295\n"));
    cr_assert(!mcd_userns_is_whole("         0     100000      65536\n"));
    cr_assert(!mcd_userns_is_whole("         0          0          1\n"));
    cr_assert(!mcd_userns_is_whole("      1000          0 4294967295\n"));
    cr_assert(!mcd_userns_is_whole("0 0"));
    cr_assert(!mcd_userns_is_whole(""));
}

Test(userns, users_that_are_shown_as_themselves_are_mapped)
{
    cr_assert(!mcd_userns_unmapped(0));
    cr_assert(!mcd_userns_unmapped(1000));
    cr_assert(!mcd_userns_unmapped(65533));
}

/* In a process of its own: in a namespace that has no numbers for anybody. */
static int look_from_inside(void)
{
    gid_t gids[] = {65534, 1000, 65534, 0, 65534};

    if (unshare(CLONE_NEWUSER) != 0)
        return 77;
    if (!mcd_userns_unmapped(65534) || mcd_userns_unmapped(1000))
        return 1;
    if (mcd_userns_known_groups(gids, 5) != 2 || gids[0] != 1000 || gids[1] != 0)
        return 2;
    return mcd_userns_known_groups(gids, 0) == 0 ? 0 : 3;
}

Test(userns, groups_that_look_the_same_count_for_no_rule)
{
    gid_t gids[] = {1000, 4};
    int status;
    pid_t pid = fork(); /* before the first look, which decides */

    cr_assert_geq(pid, 0);
    if (pid == 0)
        _exit(look_from_inside());
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    cr_assert_eq(mcd_userns_known_groups(gids, 2), 2u);
    cr_assert(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        cr_skip_test("no user namespaces here");
    cr_assert_eq(WEXITSTATUS(status), 0, "look %d", WEXITSTATUS(status));
}
