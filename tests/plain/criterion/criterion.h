/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for Criterion where the real one cannot run: it starts each test in a process
 * with memory at chosen places, which ThreadSanitizer's layout forbids.  `make SAN=thread`
 * compiles the unit tests against this file, and they run one after the other in one process.
 * It has what the tests use, and prints the same closing line.
 *
 * A test that expects a signal or an exit code is skipped here.
 */
#ifndef CRITERION_H_
#define CRITERION_H_

#include <pthread.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct plain_test {
    const char *suite, *test_name; /* test_name NULL: a suite, whose options hold for its tests */
    void (*body)(void);
    void (*init)(void);
    void (*fini)(void);
    int signal, exit_code;
    double timeout; /* the runner's time limit serves */
    bool disabled;
    const char *description;
    struct plain_test *next;
};

static struct plain_test *plain_tests, **plain_tests_end = &plain_tests;
static jmp_buf plain_out;
static pthread_t plain_main_thread;
static bool plain_failed, plain_skipped;

static inline void plain_leave(void)
{
    if (!pthread_equal(pthread_self(), plain_main_thread))
        abort();
    longjmp(plain_out, 1);
}

#define PLAIN_ADD(test)                                                                            \
    static void __attribute__((constructor)) test##_add(void)                                      \
    {                                                                                              \
        *plain_tests_end = &test;                                                                  \
        plain_tests_end = &test.next;                                                              \
    }

#define Test(suite_, name_, ...)                                                                   \
    static void suite_##_##name_##_body(void);                                                     \
    static struct plain_test suite_##_##name_ = {                                                  \
        .suite = #suite_, .test_name = #name_, .body = suite_##_##name_##_body, __VA_ARGS__};      \
    PLAIN_ADD(suite_##_##name_)                                                                    \
    static void suite_##_##name_##_body(void)

#define TestSuite(suite_, ...)                                                                     \
    static struct plain_test suite_##_suite = {.suite = #suite_, __VA_ARGS__};                     \
    PLAIN_ADD(suite_##_suite)

#define PLAIN_CHECK(leave, condition, text, ...)                                                   \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            printf("[----] %s:%d: failed: %s", __FILE__, __LINE__, text);                          \
            printf("  " __VA_ARGS__);                                                              \
            printf("\n");                                                                          \
            fflush(stdout);                                                                        \
            plain_failed = true;                                                                   \
            if (leave)                                                                             \
                plain_leave();                                                                     \
        }                                                                                          \
    } while (0)

#define PLAIN_OP(leave, a, op, b, ...) PLAIN_CHECK(leave, (a)op(b), #a " " #op " " #b, __VA_ARGS__)
#define PLAIN_STR(leave, a, op, b, ...)                                                            \
    PLAIN_CHECK(leave, strcmp((a), (b)) op 0, #a " " #op " " #b, __VA_ARGS__)
#define PLAIN_ARR(leave, a, op, b, n, ...)                                                         \
    PLAIN_CHECK(leave, memcmp((a), (b), (n)) op 0, #a " " #op " " #b, __VA_ARGS__)

#define PLAIN_FLOAT(leave, a, b, e, ...)                                                           \
    PLAIN_CHECK(leave, (a) - (b) <= (e) && (b) - (a) <= (e), #a " is about " #b, __VA_ARGS__)

#define cr_assert(c, ...) PLAIN_CHECK(true, c, #c, __VA_ARGS__)
#define cr_assert_not(c, ...) PLAIN_CHECK(true, !(c), "not " #c, __VA_ARGS__)
#define cr_assert_eq(a, b, ...) PLAIN_OP(true, a, ==, b, __VA_ARGS__)
#define cr_assert_neq(a, b, ...) PLAIN_OP(true, a, !=, b, __VA_ARGS__)
#define cr_assert_lt(a, b, ...) PLAIN_OP(true, a, <, b, __VA_ARGS__)
#define cr_assert_leq(a, b, ...) PLAIN_OP(true, a, <=, b, __VA_ARGS__)
#define cr_assert_gt(a, b, ...) PLAIN_OP(true, a, >, b, __VA_ARGS__)
#define cr_assert_geq(a, b, ...) PLAIN_OP(true, a, >=, b, __VA_ARGS__)
#define cr_assert_null(a, ...) PLAIN_CHECK(true, (a) == NULL, #a " is NULL", __VA_ARGS__)
#define cr_assert_not_null(a, ...) PLAIN_CHECK(true, (a) != NULL, #a " is not NULL", __VA_ARGS__)
#define cr_assert_str_eq(a, b, ...) PLAIN_STR(true, a, ==, b, __VA_ARGS__)
#define cr_assert_str_neq(a, b, ...) PLAIN_STR(true, a, !=, b, __VA_ARGS__)
#define cr_assert_arr_eq(a, b, n, ...) PLAIN_ARR(true, a, ==, b, n, __VA_ARGS__)
#define cr_assert_arr_neq(a, b, n, ...) PLAIN_ARR(true, a, !=, b, n, __VA_ARGS__)
#define cr_assert_float_eq(a, b, e, ...) PLAIN_FLOAT(true, a, b, e, __VA_ARGS__)
#define cr_assert_fail(...) PLAIN_CHECK(true, false, "fail", __VA_ARGS__)

#define cr_expect(c, ...) PLAIN_CHECK(false, c, #c, __VA_ARGS__)
#define cr_expect_not(c, ...) PLAIN_CHECK(false, !(c), "not " #c, __VA_ARGS__)
#define cr_expect_eq(a, b, ...) PLAIN_OP(false, a, ==, b, __VA_ARGS__)
#define cr_expect_neq(a, b, ...) PLAIN_OP(false, a, !=, b, __VA_ARGS__)
#define cr_expect_lt(a, b, ...) PLAIN_OP(false, a, <, b, __VA_ARGS__)
#define cr_expect_leq(a, b, ...) PLAIN_OP(false, a, <=, b, __VA_ARGS__)
#define cr_expect_gt(a, b, ...) PLAIN_OP(false, a, >, b, __VA_ARGS__)
#define cr_expect_geq(a, b, ...) PLAIN_OP(false, a, >=, b, __VA_ARGS__)
#define cr_expect_null(a, ...) PLAIN_CHECK(false, (a) == NULL, #a " is NULL", __VA_ARGS__)
#define cr_expect_not_null(a, ...) PLAIN_CHECK(false, (a) != NULL, #a " is not NULL", __VA_ARGS__)
#define cr_expect_str_eq(a, b, ...) PLAIN_STR(false, a, ==, b, __VA_ARGS__)
#define cr_expect_str_neq(a, b, ...) PLAIN_STR(false, a, !=, b, __VA_ARGS__)
#define cr_expect_arr_eq(a, b, n, ...) PLAIN_ARR(false, a, ==, b, n, __VA_ARGS__)
#define cr_expect_float_eq(a, b, e, ...) PLAIN_FLOAT(false, a, b, e, __VA_ARGS__)
#define cr_expect_fail(...) PLAIN_CHECK(false, false, "fail", __VA_ARGS__)
#define cr_fail(...) cr_expect_fail(__VA_ARGS__)

#define cr_log_info(...) ((void)0)
#define cr_skip_test(...)                                                                          \
    do {                                                                                           \
        printf("[SKIP] " __VA_ARGS__);                                                             \
        printf("\n");                                                                              \
        plain_skipped = true;                                                                      \
        plain_leave();                                                                             \
    } while (0)

static const struct plain_test *plain_suite(const struct plain_test *test)
{
    for (const struct plain_test *t = plain_tests; t != NULL; t = t->next)
        if (t->test_name == NULL && strcmp(t->suite, test->suite) == 0)
            return t;
    return NULL;
}

static void plain_step(void (*volatile step)(void))
{
    if (step != NULL && setjmp(plain_out) == 0)
        step();
}

int main(void)
{
    static int tested, failed;

    plain_main_thread = pthread_self();
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (const struct plain_test *t = plain_tests; t != NULL; t = t->next) {
        const struct plain_test *s = plain_suite(t);

        if (t->test_name == NULL)
            continue;
        if (t->disabled || t->signal != 0 || t->exit_code != 0 || (s != NULL && s->disabled)) {
            printf("[SKIP] %s::%s: needs a process of its own\n", t->suite, t->test_name);
            continue;
        }
        plain_failed = plain_skipped = false;
        printf("[RUN ] %s::%s\n", t->suite, t->test_name);
        plain_step(t->init != NULL ? t->init : s != NULL ? s->init : NULL);
        if (!plain_failed && !plain_skipped)
            plain_step(t->body);
        plain_step(t->fini != NULL ? t->fini : s != NULL ? s->fini : NULL);
        if (plain_skipped && !plain_failed)
            continue;
        tested++;
        failed += plain_failed;
        printf("[%s] %s::%s\n", plain_failed ? "FAIL" : "PASS", t->suite, t->test_name);
    }
    printf("[====] Synthesis: Tested: %d | Passing: %d | Failing: %d | Crashing: 0 \n", tested,
           tested - failed, failed);
    return failed != 0;
}

#endif
