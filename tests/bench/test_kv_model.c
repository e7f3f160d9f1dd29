/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/kv_model.c"
#include "bench/options.c"
#include "bench/say.c"

#include <criterion/criterion.h>

static struct kv_model parse(const char *text, double scale)
{
    struct kv_model m;
    char error[128] = "";

    cr_assert_eq(kv_model_parse(text, scale, &m, error, sizeof(error)), 0, "%s", error);
    return m;
}

Test(kv_model, bytes_of_a_block_follow_from_the_shape)
{
    /* layers x 2 x KV heads x head size x 2 bytes x 512 tokens */
    struct kv_model m = parse("llama3-8b", 1);

    cr_assert_eq(m.layers, 32);
    cr_assert_eq(m.layers * m.layer_bytes, 32u * 2 * 8 * 128 * 2 * 512);
    m = parse("llama3-70b", 1);
    cr_assert_eq(m.layers * m.layer_bytes, 80u * 2 * 8 * 128 * 2 * 512);
    /* latent attention: no factor 2 */
    m = parse("deepseek-v3", 1);
    cr_assert_eq(m.layers * m.layer_bytes, 61u * (512 + 64) * 2 * 512);
}

Test(kv_model, scaled_layers_are_whole_lines)
{
    struct kv_model m = parse("llama3-8b", 1.0 / 16);

    cr_assert_eq(m.layer_bytes, 2u * 8 * 128 * 2 * 512 / 16);
    m = parse("deepseek-v3", 0.0001);
    cr_assert_eq(m.layer_bytes % 64, 0);
    cr_assert_geq(m.layer_bytes, 64);
    m = parse("llama3-8b", 0);
    cr_assert_float_eq(m.scale, KV_SCALE_DEFAULT, 0);
}

Test(kv_model, bytes_are_taken_as_they_are)
{
    struct kv_model m = parse("bytes=1M", 0);

    cr_assert_eq(m.layers * m.layer_bytes, 1u << 20);
    m = parse("bytes=1", 0);
    cr_assert_eq(m.layer_bytes, 64);
}

Test(kv_model, what_it_does_not_know_it_names)
{
    struct kv_model m;
    char error[128];

    cr_assert_eq(kv_model_parse("gpt", 0, &m, error, sizeof(error)), -EINVAL);
    cr_assert_str_eq(error, "model gpt: expected llama3-8b, llama3-70b, deepseek-v3 or bytes=N");
    cr_assert_eq(kv_model_parse("bytes=", 0, &m, error, sizeof(error)), -EINVAL);
    cr_assert_eq(kv_model_parse("bytes=0", 0, &m, error, sizeof(error)), -EINVAL);
    cr_assert_eq(kv_model_parse("bytes=9G", 0, &m, error, sizeof(error)), -EINVAL);
    cr_assert_eq(kv_model_parse("bytes=1x", 0, &m, error, sizeof(error)), -EINVAL);
    cr_assert_eq(kv_model_parse("llama3-8b", 1.5, &m, error, sizeof(error)), -EINVAL);
}
