/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that ends: the tensors of a cell. They are filled with the very values that a lock's hashes come from, or not at
   all. memory.h says what is asked. */
#include "harness/tensors.h"
#include "memory.h"

static struct tensors tensors;

static void *open_none(const void *about) {
    (void)about;
    memset(&tensors, 0, sizeof tensors);
    return &tensors;
}

static tp_status call_make(void *subject, const void *about, tp_error *error) {
    struct tensors_style style = {.lse = 1, .repeat = 1};
    tp_problem problem;
    tp_lengths lengths = {.struct_size = sizeof lengths};
    if (tp_problem_parse(about, &problem, &lengths, error) != TP_OK) fail_msg("%s", error->text);
    return tensors_create(subject, &problem, &lengths, &style) || tensors_fill(subject, 1) ? TP_NO_MEMORY : TP_OK;
}

static void show(void *subject, const void *about, tp_status status) {
    const struct tensors *made = subject;
    char text[16];
    (void)about;
    for (int id = TENSOR_Q; id <= TENSOR_V && status == TP_OK; id++)
        for (size_t i = 0; i < made->buffer[id].bytes; i++) {
            snprintf(text, sizeof text, "%02x", ((const unsigned char *)made->buffer[id].memory)[i]);
            memory_collect(NULL, text, 2);
        }
}

static void close_made(void *subject) { tensors_destroy(subject); }

static const struct walk make = {"tensors_fill", open_none, call_make, show, close_made, 1};

static void tensors_are_made_whole(void **state) {
    static const char *const problems[] = {
        "b2 h2/1 q5 k9 d8 f32 causal",
        "b2 h2/1 q5 k9 d8 f32 paged=4 causal",
        "b2 h2/1 q5 k9 d8 f32 sparse-sorted=3 causal",
        "b2 h2/1 q5 k9 d8 f32 paged=4 documents alibi sinks",
    };
    (void)state;
    for (int i = 0; i < 4; i++) assert_true(exhaust(&make, problems[i], TP_OK) > 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(tensors_are_made_whole)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
