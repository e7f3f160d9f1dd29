/* SPDX-License-Identifier: Apache-2.0 */
/* The fuzzer's entry for control messages in ordinary builds: its corpus, and changed corpus. */
#include <criterion/criterion.h>

#include "tests/fuzz/fuzz_control.c"
/* after the target */
#include "tests/fuzz/rounds.h"

#ifdef __SANITIZE_THREAD__
#define ROUNDS 40
#elif defined(__SANITIZE_ADDRESS__)
#define ROUNDS 200
#else
#define ROUNDS 1500
#endif

TestSuite(control_fuzz, .timeout = 200, .fini = fuzz_control_fini);

Test(control_fuzz, corpus)
{
    fuzz_corpus("control");
}

Test(control_fuzz, changed_corpus)
{
    fuzz_rounds("control", ROUNDS);
}
