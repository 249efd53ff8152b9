/* SPDX-License-Identifier: Apache-2.0 */
/* Preflight: a lock and a model become permits of a context, or a refusal that names what is wrong. */
#include "support.h"

static void preflight_permits(void **state) {
    (void)state;
    tp_model *model = support_model(support_config);
    tp_identity identity = support_identity();
    struct text text = support_lock(model, &identity);
    tp_lock *lock = support_parse(&text);
    tp_context *context = support_context(TP_LOCKED, NULL);
    tp_error error = TP_ERROR_INIT;
    assert_int_equal(support_asks(context, "b1 h4/2 q300 k300 d64 f32 causal"), TP_NOT_LOCKED);
    assert_int_equal(tp_preflight(context, lock, model, "engine=1,torch=2.4", &error), TP_OK);
    assert_int_equal(support_asks(context, "b1 h4/2 q300 k300 d64 f32 causal"), TP_OK); /* any length */
    assert_int_equal(support_asks(context, "b3 h4/2 q1 k900 d64 f32 causal"), TP_OK);
    assert_int_equal(support_asks(context, "b1 h4/2 q300 k300 d80 f32 causal"), TP_NOT_LOCKED);
    struct text metrics = {NULL, 0};
    assert_int_equal(tp_metrics_write(context, text_collect, &metrics), TP_OK);
    assert_non_null(strstr(metrics.bytes, "\ntileproof_lock_loaded 1\n"));
    assert_non_null(strstr(metrics.bytes, "\ntileproof_lock_stale 0\n"));
    assert_null(strstr(metrics.bytes, "\ntileproof_lock_scratch_bytes 0\n"));
    free(metrics.bytes);
    tp_context_destroy(context);
    tp_lock_destroy(lock);
    tp_model_destroy(model);
    free(text.bytes);
}

static void fails(tp_cell *cell) {
    cell->status = TP_CELL_NUMERIC_FAIL;
    cell->reason = "o of seq 0 is wrong";
}

static void preflight_refuses(void **state) {
    (void)state;
    tp_model *model = support_model(support_config), *other;
    tp_identity identity = support_identity();
    struct text text = support_lock(model, &identity);
    tp_lock *lock = support_parse(&text);
    tp_context *context = support_context(TP_LOCKED, NULL);
    tp_error error = TP_ERROR_INIT;
    tp_lock_use use = TP_LOCK_USE_INIT;
    assert_int_equal(tp_preflight(context, lock, model, "torch=2.5,engine=1", &error), TP_UNSUPPORTED);
    assert_non_null(strstr(error.text, "a/model.json: STALE: library declared: lock has engine=1,torch=2.4"));
    struct text metrics = {NULL, 0};
    assert_int_equal(tp_metrics_write(context, text_collect, &metrics), TP_OK);
    assert_non_null(strstr(metrics.bytes, "\ntileproof_lock_stale 1\n"));
    free(metrics.bytes);
    other = support_model("{\"tileproof_model\": 1, \"groups\": [{\"layers\": \"0-3\", \"problem\": \"h4/2 d96 f32 "
                        "causal\"}]}");
    assert_int_equal(tp_preflight(context, lock, other, "torch=2.4,engine=1", &error), TP_UNSUPPORTED);
    assert_non_null(strstr(error.text, "the lock has it with another config"));
    assert_int_equal(support_asks(context, "b1 h4/2 q300 k300 d64 f32 causal"), TP_NOT_LOCKED);
    /* one cell that failed */
    support_put_changed(lock, model, &identity, 2, fails);
    assert_int_equal(tp_lock_use_at(lock, 2, &use), TP_OK);
    assert_int_equal(tp_preflight(context, lock, model, "torch=2.4,engine=1", &error), TP_UNSUPPORTED);
    char expected[128];
    snprintf(expected, sizeof expected, "a/model.json: text layers 0-3, %s: NUMERIC_FAIL: o of seq 0 is wrong",
             tp_qualify_phase_name(use.phase));
    assert_string_equal(error.text, expected);
    tp_model_destroy(other);
    tp_context_destroy(context);
    tp_lock_destroy(lock);
    tp_model_destroy(model);
    free(text.bytes);
}

/* What metrics say of the lock: the state that is 1, of a model or of all. */
static void expect_state(tp_context *context, const char *model, const char *name, int stale) {
    struct text metrics = {NULL, 0};
    char line[160];
    assert_int_equal(tp_metrics_write(context, text_collect, &metrics), TP_OK);
    snprintf(line, sizeof line, "\ntileproof_lock_state{%s%s%sstate=\"%s\"} 1\n", model ? "model=\"" : "", model ? model : "",
             model ? "\"," : "", name);
    if (strstr(metrics.bytes, line) == NULL) fail_msg("no%s in:\n%s", line, metrics.bytes);
    snprintf(line, sizeof line, "\ntileproof_lock_stale %d\n", stale);
    assert_non_null(strstr(metrics.bytes, line));
    assert_null(strstr(metrics.bytes, "\ntileproof_canary_last_success")); /* no canary is known of, so none is late */
    free(metrics.bytes);
}

static tp_model *named_model(const char *text, const char *name) {
    tp_model *model;
    tp_error error = TP_ERROR_INIT;
    if (tp_model_parse(text, strlen(text), name, &model, &error) != TP_OK) fail_msg("%s", error.text);
    return model;
}

/* However preflight ends, metrics tell: each end from a good state, and the good state again behind it. */
static void every_end_is_told(void **state) {
    (void)state;
    static const char wide[] =
        "{\"tileproof_model\": 1, \"groups\": [{\"layers\": \"0-3\", \"problem\": \"h4/2 d96 f32 causal\"}]}";
    static const char declared[] = "torch=2.4,engine=1";
    tp_model *model = support_model(support_config), *changed = support_model(wide), *unknown = named_model(wide, "b/new.json");
    tp_model *odd = named_model(wide, "b/\xc3\xbc.json"); /* no printable ASCII, as a label must be */
    tp_identity identity = support_identity();
    struct text text = support_lock(model, &identity);
    tp_lock *lock = support_parse(&text), *failed = support_parse(&text);
    tp_error error = TP_ERROR_INIT;
    support_put_changed(failed, model, &identity, 0, fails);
    const struct {
        const tp_lock *lock;
        const tp_model *model;
        const char *declared;
        tp_status status;
        const char *label, *name, *says;
    } ends[] = {
        {lock, model, "torch=2.5,engine=1", TP_UNSUPPORTED, "model.json", "stale", "STALE"},
        {lock, changed, declared, TP_UNSUPPORTED, "model.json", "other-config", "the lock has it with another config"},
        {lock, unknown, declared, TP_UNSUPPORTED, "new.json", "unknown-model", "the lock does not have it"},
        {lock, odd, declared, TP_UNSUPPORTED, "other", "unknown-model", "the lock does not have it"},
        {failed, model, declared, TP_UNSUPPORTED, "model.json", "refused", "NUMERIC_FAIL"},
        {NULL, model, declared, TP_INVALID, "model.json", "unreadable", "lock is NULL"},
        {lock, NULL, declared, TP_INVALID, NULL, "unreadable", "model is NULL"},
        {lock, model, "no version", TP_INVALID, "model.json", "failed", ""},
    };
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        tp_context *context = support_context(TP_LOCKED, NULL);
        expect_state(context, NULL, "absent", 0);
        assert_int_equal(tp_preflight(context, lock, model, declared, &error), TP_OK);
        expect_state(context, "model.json", "matches", 0);
        assert_int_equal(tp_preflight(context, ends[i].lock, ends[i].model, ends[i].declared, &error), ends[i].status);
        if (strstr(error.text, ends[i].says) == NULL) fail_msg("'%s' lacks '%s'", error.text, ends[i].says);
        expect_state(context, ends[i].label, ends[i].name, 1);
        assert_int_equal(tp_preflight(context, lock, model, declared, &error), TP_OK); /* rolled back */
        expect_state(context, "model.json", "matches", ends[i].model == unknown || ends[i].model == odd);
        tp_context_destroy(context);
    }
    assert_int_equal(tp_preflight(NULL, lock, model, declared, &error), TP_INVALID);
    tp_lock_destroy(lock);
    tp_lock_destroy(failed);
    tp_model_destroy(model);
    tp_model_destroy(changed);
    tp_model_destroy(unknown);
    tp_model_destroy(odd);
    free(text.bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_end_is_told),
        cmocka_unit_test(preflight_permits),
        cmocka_unit_test(preflight_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
