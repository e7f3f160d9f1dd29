/* SPDX-License-Identifier: Apache-2.0 */
/* The fuzzer's entry for requests about objects in ordinary builds: its corpus, and changed corpus. */
#include <criterion/criterion.h>

#include "tests/fuzz/fuzz_object.c"
/* after the target */
#include "tests/fuzz/rounds.h"

#ifdef __SANITIZE_THREAD__
#define ROUNDS 100
#elif defined(__SANITIZE_ADDRESS__)
#define ROUNDS 400
#else
#define ROUNDS 1500
#endif

TestSuite(object_fuzz, .timeout = 200);

Test(object_fuzz, corpus)
{
    fuzz_corpus("object");
}

Test(object_fuzz, changed_corpus)
{
    fuzz_rounds("object", ROUNDS);
}
