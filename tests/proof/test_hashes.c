/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 against known answers, and the hash of a config: how it is written changes nothing, what it says does. */
#include "../../proof/digest.h"
#include "support.h"

static void digests(void **state) {
    (void)state;
    static const struct {
        const char *text, *hash;
    } known[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"}};
    for (int i = 0; i < 3; i++)
        for (size_t piece = 1; piece < 70; piece += 31) {
            tp__digest digest;
            char hash[65];
            tp__digest_begin(&digest);
            for (size_t at = 0; at < strlen(known[i].text); at += piece) {
                size_t left = strlen(known[i].text) - at;
                tp__digest_add(&digest, known[i].text + at, left < piece ? left : piece);
            }
            tp__digest_end(&digest, hash);
            assert_string_equal(hash, known[i].hash);
        }
}

/* How a config is written changes nothing, what it says does. */
static void config_hashes(void **state) {
    (void)state;
    tp_model *a = support_model("{\"model_type\":\"gpt2\",\"n_head\":12,\"n_embd\":768,\"n_layer\":2}");
    tp_model *b = support_model("{ \"n_layer\":2, \"n_embd\":768,\n\"n_head\":12, \"model_type\":\"gpt2\" }");
    tp_model *c = support_model("{\"model_type\":\"gpt2\",\"n_head\":12,\"n_embd\":768,\"n_layer\":3}");
    assert_string_equal(a->config_hash, b->config_hash);
    assert_string_not_equal(a->config_hash, c->config_hash);
    tp_model_destroy(a);
    tp_model_destroy(b);
    tp_model_destroy(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(digests), cmocka_unit_test(config_hashes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
