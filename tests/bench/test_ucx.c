/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/child.c"
#include "bench/netns.c"
#include "bench/ucx.c"

#include <criterion/criterion.h>

/* ucx.c forks children that have nothing to undo; the test never starts one. */
void cleanup_forget(void)
{
}

uint64_t clock_ns(void)
{
    return 0;
}

Test(ucx, takes_the_average_bandwidth_of_the_last_line_of_numbers)
{
    static const char output[] =
        "+--------------+--------------+-----------+\n"
        "|     Test     | # iterations | 50.0%ile  |\n"
        "+--------------+--------------+-----------+\n"
        "                       10000      0.070     1.490     1.490    1.00   1.00  671094  "
        "671094\n"
        "                       20000      0.070     1.490     1.490    1000.00   999.00  1  1\n";

    cr_assert_float_eq(ucx_parse(output), 1000 * 1048576.0 / 1e9, 1e-9);
}

Test(ucx, output_without_numbers_is_no_result)
{
    cr_assert(isnan(ucx_parse("")));
    cr_assert(isnan(ucx_parse("[1700000000.1] error: no such transport\n")));
}
