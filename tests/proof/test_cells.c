/* SPDX-License-Identifier: Apache-2.0 */
/* Which cells models have. */
#include "support.h"

static tp_qualification *cells_of(tp_model *model, uint32_t phases) {
    tp_qualify_options options = TP_QUALIFY_OPTIONS_INIT;
    tp_qualification *q;
    tp_error error = TP_ERROR_INIT;
    options.phases = phases;
    options.dtype = TP_F32;
    if (tp_qualify_create(&model, 1, &options, &q, &error) != TP_OK) fail_msg("%s", error.text);
    return q;
}

/* Cells stand where something changes; what a group does not have is no cell. */
static void cells_of_groups(void **state) {
    (void)state;
    tp_model *model = support_model(
        "{\"tileproof_model\": 1, \"groups\": ["
        "{\"layers\": \"0\", \"problem\": \"h4/2 d64 f16 causal window=1023,0 spans\"},"
        "{\"part\": \"vision\", \"layers\": \"0\", \"problem\": \"h16 d72 packed\"},"
        "{\"layers\": \"1\", \"out_of_scope\": \"mamba\"}]}");
    uint32_t phases[3] = {0, 0, 0};
    int window = 0, spans = 0;
    tp_qualification *q = cells_of(model, 0);
    tp_qualify_use use = TP_QUALIFY_USE_INIT;
    for (int64_t i = 0; tp_qualification_use(q, i, &use) == TP_OK; i++) {
        const tp_cell *cell = tp_qualification_cell(q, use.cell);
        const tp_layer_group *group = model->groups[use.group];
        phases[use.group] |= use.phase;
        assert_int_equal(use.phase, cell->phase);
        assert_int_equal(cell->status, TP_CELL_NOT_RUN);
        assert_null(group->out_of_scope);
        if (group->part == TP_PART_TEXT) assert_non_null(strstr(cell->problem, " f16"));
        window += !strcmp(cell->shows, "window=1023,0") && strstr(cell->problem, "k1040") != NULL;
        spans += strstr(cell->problem, " spans") != NULL;
    }
    for (int g = 0; g < 3; g++) {
        const tp_layer_group *group = model->groups[g];
        assert_int_equal(phases[g], group->out_of_scope              ? 0
                                    : group->part == TP_PART_VISION ? TP_QUALIFY_PREFILL | TP_QUALIFY_VARLEN
                                                                    : TP_QUALIFY_ALL);
    }
    assert_int_equal(window, 1);
    assert_int_equal(spans, 1);
    tp_qualification_destroy(q);
    q = cells_of(model, TP_QUALIFY_DECODE);
    for (int64_t i = 0; tp_qualification_use(q, i, &use) == TP_OK; i++) assert_int_equal(use.phase, TP_QUALIFY_DECODE);
    assert_non_null(tp_qualification_cell(q, 0));
    tp_qualification_destroy(q);
    tp_model_destroy(model);
}

/* The first of each phase are the main ones; the limit is for each layer group. */
static void at_most_so_many_cells(void **state) {
    (void)state;
    tp_model *model = support_model(
        "{\"tileproof_model\": 1, \"groups\": ["
        "{\"layers\": \"0\", \"problem\": \"h4/2 d64 f16 causal window=1023,0\"},"
        "{\"layers\": \"1\", \"problem\": \"h4/2 d80 f16 causal\"}]}");
    for (int64_t limit = 1; limit <= 2; limit++) {
        tp_qualify_options options = TP_QUALIFY_OPTIONS_INIT;
        tp_qualify_use use = TP_QUALIFY_USE_INIT;
        tp_error error = TP_ERROR_INIT;
        tp_qualification *q;
        int64_t uses = 0, timed = 0;
        options.max_cells = limit;
        assert_int_equal(tp_qualify_create(&model, 1, &options, &q, &error), TP_OK);
        for (; tp_qualification_use(q, uses, &use) == TP_OK; uses++) timed += tp_qualification_cell(q, use.cell)->timed;
        assert_int_equal(timed, 2 * 4); /* prefill, decode, varlen, mixed of both groups */
        assert_int_equal(uses, limit == 1 ? 2 * 4 : 2 * (2 + 2 + 1 + 1));
        tp_qualification_destroy(q);
    }
    tp_model_destroy(model);
}

/* What two groups and two models ask for is one cell. */
static void a_problem_is_one_cell(void **state) {
    (void)state;
    tp_model *models[2] = {support_model(support_config), support_model(support_config)};
    tp_qualification *one = cells_of(models[0], 0), *two;
    tp_error error = TP_ERROR_INIT;
    tp_qualify_options options = TP_QUALIFY_OPTIONS_INIT;
    int64_t cells = 0, uses[2] = {0, 0};
    tp_qualify_use use = TP_QUALIFY_USE_INIT;
    assert_int_equal(tp_qualify_create(models, 2, &options, &two, &error), TP_OK);
    for (; tp_qualification_cell(one, cells); cells++)
        assert_string_equal(tp_qualification_cell(one, cells)->problem, tp_qualification_cell(two, cells)->problem);
    assert_null(tp_qualification_cell(two, cells));
    for (int64_t i = 0; tp_qualification_use(two, i, &use) == TP_OK; i++) uses[use.model]++;
    assert_true(cells > 6 && uses[0] == cells && uses[1] == cells);
    tp_qualification_destroy(one);
    tp_qualification_destroy(two);
    for (int i = 0; i < 2; i++) tp_model_destroy(models[i]);
}

/* Tokens of all sequences of a cell: rows, or keys. */
static double tokens(const char *text, int keys) {
    tp_problem problem;
    tp_lengths lengths = {.struct_size = sizeof lengths};
    double sum = 0;
    assert_int_equal(tp_problem_parse(text, &problem, &lengths, NULL), TP_OK);
    if (!lengths.count) return (double)problem.batch * (double)(keys ? problem.kv_len : problem.q_len);
    for (int64_t i = 0; i < lengths.count; i++)
        sum += (double)lengths.seq[i].repeat * (double)(keys ? lengths.seq[i].kv_len : lengths.seq[i].q_len);
    return sum;
}

/* Whatever heads, dims and prefixes a file has: a cell that is to be run takes at most 192 MB at 16 bits, and what does
   not fit is refused by name. */
static void cells_fit(void **state) {
    (void)state;
    static const int64_t heads[] = {1, 32, 4096, 65536}, dims[] = {64, 576, 4096}, prefixes[] = {0, 100000};
    tp_error error = TP_ERROR_INIT;
    int run = 0, refused = 0;
    for (int i = 0; i < 4 * 4 * 3 * 2; i++) {
        int64_t q = heads[i % 4], kv = heads[i / 4 % 4], dim = dims[i / 16 % 3], prefix = prefixes[i / 48];
        char text[512];
        uint32_t phases = 0;
        if (kv > q) continue;
        snprintf(text, sizeof text, "{\"tileproof_model\": 1, \"groups\": [{\"layers\": \"0\", \"problem\": "
                 "\"h%lld/%lld d%lld bf16 causal%s\"}]}", (long long)q, (long long)kv, (long long)dim,
                 prefix ? " prefix=100000" : "");
        tp_model *model = support_model(text);
        tp_qualification *all = cells_of(model, 0);
        const tp_cell *cell;
        for (int64_t c = 0; (cell = tp_qualification_cell(all, c)); c++) {
            tp_problem problem;
            phases |= cell->phase;
            if (strstr(cell->reason, "not run")) {
                assert_int_equal(cell->status, TP_CELL_UNSUPPORTED);
                assert_non_null(strstr(cell->reason, "at most 192"));
                refused++;
                continue;
            }
            if (cell->status != TP_CELL_NOT_RUN) continue;
            tp_lengths lengths = {.struct_size = sizeof lengths};
            assert_int_equal(tp_problem_parse(cell->problem, &problem, &lengths, &error), TP_OK);
            double bytes = 2.0 * (double)(problem.head_dim_qk + problem.head_dim_v) *
                           (tokens(cell->problem, 1) * (double)problem.kv_heads +
                            tokens(cell->problem, 0) * (double)problem.q_heads);
            if (bytes > 192e6) fail_msg("%s takes %.0f MB", cell->problem, bytes * 1e-6);
            run++;
        }
        assert_int_equal(phases, prefix ? TP_QUALIFY_ALL : TP_QUALIFY_ALL & ~TP_QUALIFY_MULTIMODAL);
        tp_qualification_destroy(all);
        tp_model_destroy(model);
    }
    assert_true(run > 100 && refused > 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cells_of_groups), cmocka_unit_test(at_most_so_many_cells),
        cmocka_unit_test(a_problem_is_one_cell),
        cmocka_unit_test(cells_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
