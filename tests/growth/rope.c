/* SPDX-License-Identifier: Apache-2.0 */
/* Every function of tileproof_rope.h that takes a struct, by a program of another version than the library's. */
#include "growth/growth.h"

#include <math.h>

#include "tileproof_rope.h"

static void a_rotation(void **state) {
    (void)state;
    tp_error *error = PLACE_INIT(tp_error, TP_ERROR_INIT);
    tp_rope_options *options = PLACE_INIT(tp_rope_options, TP_ROPE_OPTIONS_INIT);
    tp_rope_rows *rows = PLACE_INIT(tp_rope_rows, TP_ROPE_ROWS_INIT);
    tp_rotary *rotary = NULL;
    float row[4] = {1, 2, 3, 4};
    int64_t position = 7;
    options->head_dim = 4, options->dims = 2, options->theta = 10;
#define CREATE tp_rope_create(options, &rotary, error)
    REFUSES(options, tp_rope_options, CREATE);
    REFUSES_SIZE(options, tp_rope_options, CREATE);
    tp_rope_destroy(rotary);
    GOOD(CREATE);
#undef CREATE
    rows->dtype = TP_F32, rows->tokens = rows->heads = 1, rows->in.data = rows->out.data = row, rows->positions = &position;
#define APPLY tp_rope_apply(rotary, rows, error)
    REFUSES_SIZE(rows, tp_rope_rows, APPLY);
    row[0] = 1, row[1] = 2;
    GOOD(APPLY);
    assert_true(fabs(row[0] - (cos(7) - 2 * sin(7))) < 1e-6 && fabs(row[1] - (2 * cos(7) + sin(7))) < 1e-6);
    assert_true(row[2] == 3 && row[3] == 4);
    REFUSES(rows, tp_rope_rows, APPLY);
#undef APPLY
    tp_rope_destroy(rotary);
    growth_free();
}

/* No struct of the header is missing above. */
static void every_struct_is_met(void **state) {
    (void)state;
#ifdef TILEPROOF_ROPE_GROWN
#define MET(type)                                                                                                                \
    if (!growth_knows(#type)) fail_msg("%s", #type " has a struct_size and is in no test of growth");
    TILEPROOF_ROPE_GROWN(MET)
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_rotation), cmocka_unit_test(every_struct_is_met)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
