/* SPDX-License-Identifier: Apache-2.0 */
/* Cells on an engine of the test's own, written from the definition, which can be wrong in one way at a time. */
#include <math.h>

#include "support.h"

/* Every way in which an engine can be told of a mask or a score. Few keys, so that the cells are quick. */
static const char *const problems[] = {"h4/2 d16 f32 causal",
                                       "h2/1 d16 f32 causal window=40,0",
                                       "h2/2 d16/24 f32 causal softcap=5",
                                       "h2/1 d16 f32 causal sinks",
                                       "h2/2 d16 f32 causal alibi",
                                       "h2/1 d16 f32 causal chunk=40",
                                       "h2/1 d16 bf16 causal scale=0.3",
                                       "h4/1 d16 f16"};
enum { PROBLEMS = sizeof problems / sizeof *problems };

enum fault {
    NONE,
    OFF_BY_ONE_KEY, /* the row's own key is left out */
    WRONG_SCALE,
    MULTIPLIES_HIDDEN, /* a weight of 0 times what a hidden key has */
    MIXES_SEQUENCES,   /* the same, of the first key of all */
    VARIES,
    VARIES_AND_LEAKS,
    EMPTY_IS_NAN,
    REFUSES_EMPTY,
    HALF_WRITTEN,
    REFUSES_,
    BREAKS,
    NO_ROOM
};

struct engine {
    enum fault fault;
    int calls, fused;
    int64_t temporary;
    const char *kernel;
    int rounds_scores; /* to bf16, as a plain kernel would: right, but no float32 kernel */
};

static float read_element(const void *base, int64_t i, int32_t dtype) {
    return tp_to_float((tp_dtype)dtype, (const char *)base + i * (int64_t)tp_dtype_bytes((tp_dtype)dtype));
}

static float to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000u;
    memcpy(&value, &bits, 4);
    return value;
}

static void write_element(void *base, int64_t i, int32_t dtype, float value) {
    tp_from_float((tp_dtype)dtype, value, (char *)base + i * (int64_t)tp_dtype_bytes((tp_dtype)dtype));
}

struct place {
    int64_t seq, row, head, q0, k0;
    const uint8_t *seen;
};

static double score(const struct engine *e, const tp_engine_call *c, const struct place *at, int64_t key) {
    const tp_problem *p = c->problem;
    int64_t kv = at->head / (p->q_heads / p->kv_heads);
    double s = 0, scale = p->scale_set ? (double)p->scale : 1 / sqrt((double)p->head_dim_qk);
    for (int64_t x = 0; x < p->head_dim_qk; x++)
        s += (double)read_element(c->q, ((at->q0 + at->row) * p->q_heads + at->head) * p->head_dim_qk + x, p->q_dtype) *
             (double)read_element(c->k, ((at->k0 + key) * p->kv_heads + kv) * p->head_dim_qk + x, p->k_dtype);
    if (c->q_factors) s *= (double)c->q_factors[at->q0 + at->row];
    s *= e->fault == WRONG_SCALE ? scale * 1.1 : scale;
    if (p->softcap > 0) s = (double)p->softcap * tanh(s / (double)p->softcap);
    int64_t position = at->row + c->kv_lens[at->seq] - c->q_lens[at->seq];
    if (c->slopes) s -= (double)c->slopes[at->seq * p->q_heads + at->head] * (double)llabs(position - key);
    return e->rounds_scores ? (double)to_bf16((float)s) : s;
}

static int shows(const tp_engine_call *c, const struct place *at, int64_t key) {
    int64_t position = at->row + c->kv_lens[at->seq] - c->q_lens[at->seq];
    return c->mask == TP_ENGINE_FULL || (key <= position && (c->mask == TP_ENGINE_CAUSAL || key >= position - c->window));
}

static void attend(struct engine *e, const tp_engine_call *c, const struct place *at) {
    const tp_problem *p = c->problem;
    int64_t keys = c->kv_lens[at->seq], kv = at->head / (p->q_heads / p->kv_heads), dim = p->head_dim_v;
    double max = c->sinks ? (double)c->sinks[at->head] : -INFINITY, sum = 0, o[64] = {0};
    uint8_t seen[4200];
    memcpy(seen, at->seen, (size_t)keys);
    for (int64_t key = 0; c->mask != TP_ENGINE_VISIBLE && key < keys; key++) assert_int_equal(seen[key], shows(c, at, key));
    int64_t position = at->row + keys - c->q_lens[at->seq];
    if (e->fault == OFF_BY_ONE_KEY && position > 0 && position < keys) seen[position] = 0;
    for (int64_t key = 0; key < keys; key++)
        if (seen[key]) max = fmax(max, score(e, c, at, key));
    if (c->sinks && max > -INFINITY) sum = exp((double)c->sinks[at->head] - max);
    for (int64_t key = 0; key < keys; key++) {
        if (!seen[key] && e->fault != MULTIPLIES_HIDDEN && e->fault != VARIES_AND_LEAKS) continue;
        double weight = seen[key] ? exp(score(e, c, at, key) - max) : 0;
        sum += weight;
        for (int64_t x = 0; x < dim; x++)
            o[x] += weight * (double)read_element(c->v, ((at->k0 + key) * p->kv_heads + kv) * dim + x, p->v_dtype);
    }
    for (int64_t x = 0; x < dim; x++) {
        double value = sum > 0 ? o[x] / sum : e->fault == EMPTY_IS_NAN ? NAN : 0;
        if ((e->fault == VARIES || e->fault == VARIES_AND_LEAKS) && e->calls % 2) value *= 1 + 0x1p-22;
        if (e->fault == MIXES_SEQUENCES && at->k0) value += 0 * (double)read_element(c->v, kv * dim + x, p->v_dtype);
        if (e->fault == HALF_WRITTEN && at->head) continue;
        write_element(c->o, ((at->q0 + at->row) * p->q_heads + at->head) * dim + x, p->o_dtype, (float)value);
    }
}

static tp_status serve(void *user, const tp_engine_call *call, tp_engine_answer *answer) {
    struct engine *e = user;
    struct place at = {.seen = call->visible};
    assert_int_equal(call->struct_size, sizeof *call);
    assert_int_equal(answer->struct_size, sizeof *answer);
    e->calls++;
    answer->kernel = e->kernel;
    answer->observed = "log";
    answer->fused = e->fused;
    answer->temporary = e->temporary;
    answer->time_ns = call->time_ns > 0 ? 5 : 0;
    answer->reasons = e->fault == NONE ? NULL : "as it was told\n\x01";
    if (e->fault == REFUSES_EMPTY && call->q_tokens > call->kv_tokens) return TP_UNSUPPORTED;
    if (e->fault == REFUSES_) return TP_UNSUPPORTED;
    if (e->fault == BREAKS) return TP_INVALID;
    if (e->fault == NO_ROOM) return TP_NO_MEMORY;
    /* masks that have a name are told by it; a chunk that hides something has none */
    assert_true(call->mask != TP_ENGINE_VISIBLE || strstr(call->text, "chunk"));
    for (at.seq = 0; at.seq < call->sequences; at.seq++) {
        for (at.row = 0; at.row < call->q_lens[at.seq]; at.row++, at.seen += call->kv_lens[at.seq])
            for (at.head = 0; at.head < call->problem->q_heads; at.head++) attend(e, call, &at);
        at.q0 += call->q_lens[at.seq];
        at.k0 += call->kv_lens[at.seq];
    }
    assert_true(at.q0 == call->q_tokens && at.k0 == call->kv_tokens);
    return TP_OK;
}

static tp_qualification *run_with(const char *problem, struct engine *e, uint32_t require, tp_status expected) {
    char text[256];
    snprintf(text, sizeof text,
             "{\"tileproof_model\": 1, \"groups\": [{\"layers\": \"0\", \"max_positions\": 64, \"problem\": \"%s\"}]}", problem);
    static tp_model *model;
    tp_model_destroy(model); /* it outlives its qualification: until the next one */
    model = support_model(text);
    tp_qualify_options options = TP_QUALIFY_OPTIONS_INIT;
    tp_qualify_run_options run = TP_QUALIFY_RUN_OPTIONS_INIT;
    tp_engine engine = TP_ENGINE_INIT;
    tp_error error = TP_ERROR_INIT;
    tp_qualification *q;
    options.quick = 1;
    engine.run = serve, engine.user = e, engine.require = require;
    run.engine = &engine, run.time_ns = 1;
    if (tp_qualify_create(&model, 1, &options, &q, &error) != TP_OK) fail_msg("%s", error.text);
    tp_context *context = support_context(TP_REFUSE, NULL);
    tp_status status = tp_qualify_run(q, context, &run, &error);
    if (status != expected) fail_msg("%s: %s", problem, error.text);
    tp_context_destroy(context);
    return q;
}

static void right_engines_are_qualified(void **state) {
    (void)state;
    for (int i = 0; i < PROBLEMS; i++) {
        struct engine e = {.kernel = "own loops", .fused = TP_ENGINE_FUSED};
        tp_qualification *q = run_with(problems[i], &e, TP_REQUIRE_ALL, TP_OK);
        const tp_cell *cell;
        int hides = 0, empties = 0, timed = 0;
        for (int64_t j = 0; (cell = tp_qualification_cell(q, j)); j++) {
            if (cell->status != TP_CELL_QUALIFIED) fail_msg("%s: %s", cell->problem, cell->reason);
            assert_string_equal(cell->kernel, "own loops");
            assert_string_equal(cell->observed, "log");
            assert_true(!strncmp(cell->rule, "2 x naive in ", 13) && strstr(cell->problem, cell->rule + 13));
            assert_true(cell->allowed > 0 && cell->error <= cell->allowed && strlen(cell->output) == 64);
            assert_int_equal(cell->deterministic, TP_KEPT_YES);
            assert_int_not_equal(cell->contained, TP_KEPT_LEAKS);
            hides += cell->contained == TP_KEPT_YES, empties += cell->empty_rows == TP_KEPT_YES, timed += cell->time_ns > 0;
            assert_int_equal(cell->time_ns > 0, cell->timed);
            assert_true(!cell->reason[0] && !cell->doubt[0]);
        }
        assert_true(hides > 0 && timed > 0);
        assert_int_equal(empties > 0, strstr(problems[i], "causal") != NULL);
        tp_qualification_destroy(q);
    }
}

/* Coarser than a float32 kernel may be, and no worse than twice a naive one of that dtype. */
static void foreign_arithmetic_is_judged_by_its_dtype(void **state) {
    (void)state;
    struct engine coarse = {.kernel = "k", .rounds_scores = 1};
    tp_qualification *q = run_with("h2/1 d16 bf16 causal", &coarse, 0, TP_OK);
    assert_int_equal(tp_qualification_status(q), TP_CELL_QUALIFIED);
    tp_qualification_destroy(q);
    q = run_with("h2/1 d16 f32 causal", &coarse, 0, TP_OK);
    assert_int_equal(tp_qualification_status(q), TP_CELL_NUMERIC_FAIL);
    tp_qualification_destroy(q);
}

/* The worst cell of a problem with this fault. */
static const tp_cell *worst(const tp_qualification *q, tp_cell_status status) {
    const tp_cell *cell;
    for (int64_t i = 0; (cell = tp_qualification_cell(q, i)); i++)
        if (cell->status == (int32_t)status) return cell;
    fail_msg("no cell is %s", tp_cell_status_name(status));
    return NULL;
}

static void wrong_engines_are_found(void **state) {
    (void)state;
    static const struct {
        enum fault fault;
        tp_cell_status status;
        const char *reason;
    } cases[] = {{OFF_BY_ONE_KEY, TP_CELL_NUMERIC_FAIL, "o "},
                 {WRONG_SCALE, TP_CELL_NUMERIC_FAIL, "o "},
                 {HALF_WRITTEN, TP_CELL_NUMERIC_FAIL, "o of "},
                 {REFUSES_, TP_CELL_UNSUPPORTED, "as it was told??"},
                 {BREAKS, TP_CELL_NUMERIC_FAIL, "as it was told??"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct engine e = {.kernel = "k", .fault = cases[i].fault};
        tp_qualification *q = run_with(problems[0], &e, 0, TP_OK);
        assert_int_equal(tp_qualification_status(q), cases[i].status);
        const tp_cell *cell = worst(q, cases[i].status);
        if (strncmp(cell->reason, cases[i].reason, strlen(cases[i].reason))) fail_msg("%s", cell->reason);
        tp_qualification_destroy(q);
    }
    struct engine picky = {.kernel = "k", .fault = REFUSES_EMPTY, .fused = TP_ENGINE_UNFUSED};
    tp_qualification *kept = run_with("h4/2 d16 f32 causal", &picky, TP_REQUIRE_ALL, TP_OK);
    assert_int_equal(tp_qualification_status(kept), TP_CELL_QUALIFIED_FALLBACK);
    for (int64_t i = 0; tp_qualification_cell(kept, i); i++) {
        assert_int_equal(tp_qualification_cell(kept, i)->empty_rows, TP_KEPT_UNKNOWN);
        assert_string_equal(tp_qualification_cell(kept, i)->reason, "not fused: as it was told??");
    }
    tp_qualification_destroy(kept);
    struct engine e = {.kernel = "k", .fault = NO_ROOM};
    tp_qualification *q = run_with(problems[0], &e, 0, TP_NO_MEMORY);
    assert_int_equal(tp_qualification_status(q), TP_CELL_NOT_RUN);
    assert_int_equal(e.calls, 1);
    tp_qualification_destroy(q);
}

/* Seen, and a failure only where it is required. */
static void properties_are_seen(void **state) {
    (void)state;
    static const struct {
        enum fault fault;
        uint32_t require;
        size_t field;
        int32_t seen;
        const char *reason;
    } cases[] = {
        {MULTIPLIES_HIDDEN, TP_REQUIRE_CONTAINED, offsetof(tp_cell, contained), TP_KEPT_LEAKS, "NaN in keys"},
        {MIXES_SEQUENCES, TP_REQUIRE_CONTAINED, offsetof(tp_cell, contained), TP_KEPT_LEAKS, "NaN in other sequences"},
        {VARIES, TP_REQUIRE_DETERMINISTIC, offsetof(tp_cell, deterministic), TP_KEPT_VARIES, "the same call gave other bits"},
        {VARIES_AND_LEAKS, TP_REQUIRE_CONTAINED | TP_REQUIRE_DETERMINISTIC, offsetof(tp_cell, contained), TP_KEPT_LEAKS,
         "the same call gave other bits"},
        {EMPTY_IS_NAN, TP_REQUIRE_EMPTY, offsetof(tp_cell, empty_rows), TP_KEPT_LEAKS, "a row that sees no key"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int required = 0; required < 2; required++) {
            struct engine e = {.kernel = "k", .fault = cases[i].fault};
            /* the others are required, and kept */
            uint32_t require = required ? cases[i].require : TP_REQUIRE_ALL & ~cases[i].require;
            tp_qualification *q = run_with(problems[0], &e, require, TP_OK);
            assert_int_equal(tp_qualification_status(q), required ? TP_CELL_NUMERIC_FAIL : TP_CELL_QUALIFIED);
            if (required) {
                const tp_cell *cell = worst(q, TP_CELL_NUMERIC_FAIL);
                if (strncmp(cell->reason, cases[i].reason, strlen(cases[i].reason))) fail_msg("%s", cell->reason);
                assert_non_null(strstr(cell->reason, "was required"));
            }
            int seen = 0;
            const tp_cell *cell;
            for (int64_t j = 0; (cell = tp_qualification_cell(q, j)); j++) {
                int32_t value;
                memcpy(&value, (const char *)cell + cases[i].field, sizeof value);
                seen += value == cases[i].seen;
            }
            if (!(required && cases[i].fault == VARIES_AND_LEAKS)) assert_true(seen > 0); /* it failed before that was tried */
            tp_qualification_destroy(q);
        }
}

/* 61 rows of 4 heads: the scores take 60 KB, all else less where dims are small. */
static void memory_is_held_against_the_name(void **state) {
    (void)state;
    static const struct {
        int fused;
        int64_t temporary;
        tp_cell_status status;
        const char *doubt, *reason;
    } cases[] = {
        {TP_ENGINE_FUSED, 1000, TP_CELL_QUALIFIED, "", ""},
        {TP_ENGINE_FUSED, 1 << 20, TP_CELL_QUALIFIED, "", ""}, /* tiles of one thread may take as much */
        {TP_ENGINE_FUSED, 1 << 30, TP_CELL_QUALIFIED_FALLBACK, "they were written, though the kernel's name says fused",
         "not fused: a call took"},
        {TP_ENGINE_UNKNOWN, 1 << 30, TP_CELL_QUALIFIED_FALLBACK, "they were written", "not fused: a call took"},
        {TP_ENGINE_UNKNOWN, 1000, TP_CELL_QUALIFIED, "", ""},
        {TP_ENGINE_UNKNOWN, 0, TP_CELL_QUALIFIED, "", ""},
        {TP_ENGINE_UNFUSED, 1 << 20, TP_CELL_QUALIFIED_FALLBACK, "", "not fused: the kernel is not fused"},
        {TP_ENGINE_UNFUSED, 1000, TP_CELL_QUALIFIED_FALLBACK, "they were not written whole", "not fused: the kernel is not"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct engine e = {.kernel = "", .fused = cases[i].fused, .temporary = cases[i].temporary};
        tp_qualification *q = run_with("h4/1 d1 f32 causal", &e, 0, TP_OK);
        const tp_cell *cell = worst(q, cases[i].status);
        assert_string_equal(cell->observed, "not observable");
        assert_string_equal(cell->kernel, "");
        assert_int_equal(cell->temporary, cases[i].temporary);
        if (!strstr(cell->doubt, cases[i].doubt) || !cases[i].doubt[0] != !cell->doubt[0]) fail_msg("%zu: %s", i, cell->doubt);
        if (strncmp(cell->reason, cases[i].reason, strlen(cases[i].reason))) fail_msg("%zu: %s", i, cell->reason);
        tp_qualification_destroy(q);
    }
}

/* What an engine left there stands in a journal, and is read again. */
static void cells_go_there_and_back(void **state) {
    (void)state;
    struct engine e = {.kernel = "k\xff", .fault = VARIES, .fused = TP_ENGINE_UNFUSED, .temporary = 4096};
    tp_qualification *q = run_with(problems[0], &e, 0, TP_OK);
    const tp_cell *cell = tp_qualification_cell(q, 0);
    struct text text = {0};
    tp_error error = TP_ERROR_INIT;
    tp_cell *read;
    assert_string_equal(cell->kernel, "k?");
    assert_string_equal(cell->engine_reasons, "as it was told??");
    assert_int_equal(tp_cell_write(cell, 1, text_collect, &text), TP_OK);
    if (tp_cell_parse(text.bytes, text.size, "j", 1, &read, &error) != TP_OK) fail_msg("%s", error.text);
    assert_string_equal(read->rule, cell->rule);
    assert_string_equal(read->observed, cell->observed);
    assert_string_equal(read->engine_reasons, cell->engine_reasons);
    assert_true(read->deterministic == TP_KEPT_VARIES && read->contained == cell->contained && read->temporary == 4096);
    tp_cell_destroy(read);
    text_replace(&text, "\"varies\"", "\"moves\"");
    assert_int_equal(tp_cell_parse(text.bytes, text.size, "j", 1, &read, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "kept, leaks or varies"));
    free(text.bytes);
    tp_qualification_destroy(q);
}

static void bad_engines_are_refused(void **state) {
    (void)state;
    tp_model *model = support_model(support_config);
    tp_qualify_run_options run = TP_QUALIFY_RUN_OPTIONS_INIT;
    tp_engine engine = TP_ENGINE_INIT;
    tp_error error = TP_ERROR_INIT;
    tp_qualification *q;
    tp_context *context = support_context(TP_REFUSE, NULL);
    assert_int_equal(tp_qualify_create(&model, 1, NULL, &q, &error), TP_OK);
    run.engine = &engine;
    assert_int_equal(tp_qualify_run(q, context, &run, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "engine.run is NULL"));
    engine.run = serve, engine.require = 64;
    assert_int_equal(tp_qualify_run_cell(q, 0, context, &run, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "engine.require is 64"));
    tp_context_destroy(context);
    tp_qualification_destroy(q);
    tp_model_destroy(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_engines_are_qualified), cmocka_unit_test(foreign_arithmetic_is_judged_by_its_dtype),
        cmocka_unit_test(wrong_engines_are_found),     cmocka_unit_test(properties_are_seen),
        cmocka_unit_test(memory_is_held_against_the_name), cmocka_unit_test(cells_go_there_and_back),
        cmocka_unit_test(bad_engines_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
