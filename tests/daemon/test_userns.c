/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

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
