/* SPDX-License-Identifier: Apache-2.0 */
/* Other engines in a lock: their identities, cells and properties, beside those of this library. */
#include "support.h"

static tp_lock *empty(void) {
    tp_lock *lock;
    assert_int_equal(tp_lock_create(&lock, NULL), TP_OK);
    return lock;
}

static tp_identity torch(void) {
    tp_identity identity = {.struct_size = sizeof identity, .parser = 1};
    identity.engine = "torch", identity.mode = "compiled", identity.device = "cuda:NVIDIA H100", identity.cache = "e4m3/tensor";
    identity.versions = "torch=2.9.0+cu130\ncuda=13.0\ncudnn=9.13";
    identity.host = "gpu=NVIDIA H100 80GB HBM3\ndriver=580.65.06";
    return identity;
}

static tp_cell foreign_cell(const char *problem) {
    tp_cell cell = TP_CELL_INIT;
    cell.problem = problem, cell.purpose = "main", cell.phase = TP_QUALIFY_PREFILL, cell.status = TP_CELL_QUALIFIED_FALLBACK;
    cell.kernel = "math", cell.rule = "2 x naive in bf16", cell.observed = "dispatcher";
    cell.engine_reasons = "flash: head_dim 640 > 256", cell.doubt = "11 MB of temporary memory are its scores";
    cell.contained = TP_KEPT_LEAKS, cell.deterministic = TP_KEPT_YES, cell.empty_rows = TP_KEPT_VARIES;
    cell.temporary = 11 << 20, cell.loss = 0.015625;
    return cell;
}

static void other_engines(void **state) {
    (void)state;
    tp_identity own = support_identity(), identity = torch(), newer;
    tp_model *model = support_model(support_config);
    tp_lock *lock = empty();
    tp_error error = TP_ERROR_INIT;
    tp_lock_revision one = TP_LOCK_REVISION_INIT;
    tp_cell cell = foreign_cell("prefill b1 h4/2 q7 k7 d64 f32 causal"), read = TP_CELL_INIT;
    char why[1024];
    support_put(lock, model, &own, "ours");
    assert_int_equal(tp_lock_put_model(lock, model->label, model->config_hash, &error), TP_OK);
    assert_int_equal(tp_lock_put_use(lock, model->label, model->groups[0], &cell, &error), TP_OK);
    assert_int_equal(tp_lock_put_cell(lock, "", &cell, &error), TP_OK);
    assert_int_equal(tp_lock_finish(lock, &identity, "2026-11-17", "theirs", &error), TP_OK);
    struct text text = support_write(lock);
    assert_non_null(strstr(text.bytes, "\"engine\": {\"name\":\"torch\",\"mode\":\"compiled\",\"device\":\"cuda:NVIDIA H100\","
                                       "\"cache\":\"e4m3/tensor\"}"));
    assert_non_null(strstr(text.bytes, "\"contained\":\"leaks\",\"deterministic\":\"kept\",\"empty_rows\":\"varies\""));
    tp_lock *again = support_parse(&text);
    assert_int_equal(tp_lock_revision_at(again, 1, &one), TP_OK);
    assert_string_equal(one.engine, "torch");
    assert_string_equal(one.device, "cuda:NVIDIA H100");
    assert_string_equal(one.cache, "e4m3/tensor");
    assert_string_equal(one.isa, "");
    assert_int_equal(one.status, TP_CELL_QUALIFIED_FALLBACK);
    assert_int_equal(tp_lock_cell_for(again, &identity, cell.problem, &read), TP_OK);
    assert_string_equal(read.rule, cell.rule);
    assert_string_equal(read.observed, cell.observed);
    assert_string_equal(read.engine_reasons, cell.engine_reasons);
    assert_string_equal(read.doubt, cell.doubt);
    assert_true(read.contained == TP_KEPT_LEAKS && read.deterministic == TP_KEPT_YES && read.empty_rows == TP_KEPT_VARIES);
    assert_true(read.temporary == 11 << 20 && read.loss == 0.015625);
    /* this library's cells are its own, and its lock is not stale for another engine's sake */
    assert_int_equal(tp_lock_cell_find(again, own.isa, cell.problem, &read), TP_OK);
    assert_string_not_equal(read.kernel, "math");
    assert_int_equal(tp_lock_fresh(again, &own, why, sizeof why), TP_OK);
    assert_int_equal(tp_lock_fresh(again, &identity, why, sizeof why), TP_OK);
    newer = identity;
    newer.versions = "torch=2.9.1+cu130\ncuda=13.0\nflash_attn=2.8";
    assert_int_equal(tp_lock_fresh(again, &newer, why, sizeof why), TP_UNSUPPORTED);
    assert_string_equal(why, "torch torch: lock has 2.9.0+cu130, here 2.9.1+cu130; torch cudnn: lock has 9.13, here none; torch "
                             "flash_attn: lock has none, here 2.8");
    newer = identity;
    newer.device = "cpu";
    assert_int_equal(tp_lock_fresh(again, &newer, why, sizeof why), TP_UNSUPPORTED);
    assert_int_equal(tp_lock_cell_for(again, &newer, cell.problem, &read), TP_INVALID);
    /* cells to run them again: of one revision, without what was seen */
    tp_qualification *q;
    assert_int_equal(tp_qualify_create_revision(again, 1, NULL, &q, &error), TP_OK);
    assert_string_equal(tp_qualification_cell(q, 0)->problem, cell.problem);
    assert_int_equal(tp_qualification_cell(q, 0)->status, TP_CELL_NOT_RUN);
    assert_string_equal(tp_qualification_cell(q, 0)->rule, "");
    assert_null(tp_qualification_cell(q, 1));
    tp_qualification_destroy(q);
    assert_int_equal(tp_qualify_create_revision(again, 2, NULL, &q, &error), TP_INVALID);
    /* and of whatever engine an identity names */
    assert_int_equal(tp_lock_cell_of(again, &identity, 0, &read), TP_OK);
    assert_string_equal(read.problem, cell.problem);
    assert_int_equal(tp_lock_cell_of(again, &identity, 1, &read), TP_INVALID);
    assert_int_equal(tp_lock_cell_of(again, &identity, -1, &read), TP_INVALID);
    assert_int_equal(tp_lock_cell_of(again, &newer, 0, &read), TP_INVALID);
    assert_int_equal(tp_lock_cell_of(NULL, &identity, 0, &read), TP_INVALID);
    assert_int_equal(tp_qualify_create_for(again, &identity, NULL, &q, &error), TP_OK);
    assert_string_equal(tp_qualification_cell(q, 0)->problem, cell.problem);
    assert_int_equal(tp_qualification_cell(q, 0)->status, TP_CELL_NOT_RUN);
    assert_null(tp_qualification_cell(q, 1));
    tp_qualification_destroy(q);
    assert_int_equal(tp_qualify_create_for(again, &newer, NULL, &q, &error), TP_OK);
    assert_null(tp_qualification_cell(q, 0));
    tp_qualification_destroy(q);
    assert_int_equal(tp_qualify_create_for(again, NULL, NULL, &q, &error), TP_INVALID);
    tp_lock_destroy(again);
    tp_lock_destroy(lock);
    tp_model_destroy(model);
    free(text.bytes);
}

static void properties_are_compared(void **state) {
    (void)state;
    tp_cell locked = foreign_cell("prefill b1 h4/2 q7 k7 d64 f32 causal"), now = locked;
    char why[1024];
    assert_int_equal(tp_cell_compare(&locked, &now, why, sizeof why), TP_CELL_QUALIFIED);
    now.deterministic = TP_KEPT_VARIES;
    assert_int_equal(tp_cell_compare(&locked, &now, why, sizeof why), TP_CELL_STALE);
    assert_string_equal(why, "deterministic: lock has kept, here varies");
    now = locked;
    now.temporary *= 2; /* memory is no promise: it is told, not compared */
    assert_int_equal(tp_cell_compare(&locked, &now, why, sizeof why), TP_CELL_QUALIFIED);
}

static void identities_have_rules(void **state) {
    (void)state;
    static const struct {
        const char *versions, *host, *expected;
    } bad[] = {
        {"torch", "", "versions has the line 'torch': it must be name=value"},
        {"torch=2\n=1", "", "versions has the line '=1'"},
        {"torch=", "", "versions has the line 'torch='"},
        {"", "g p u=1", "host has the line 'g p u=1'"},
        {"", "gpu=\xff", "host is not UTF-8"},
    };
    tp_lock *lock = empty();
    tp_error error = TP_ERROR_INIT;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tp_identity identity = torch();
        identity.versions = bad[i].versions, identity.host = bad[i].host;
        assert_int_equal(tp_lock_finish(lock, &identity, "2026-11-17", "why", &error), TP_INVALID);
        if (!strstr(error.text, bad[i].expected)) fail_msg("%s", error.text);
    }
    tp_identity identity = torch();
    identity.engine = "";
    assert_int_equal(tp_lock_finish(lock, &identity, "2026-11-17", "why", &error), TP_INVALID);
    assert_non_null(strstr(error.text, "isa is empty"));
    tp_cell cell = foreign_cell("b1 h1/1 q1 k1 d8 f32");
    cell.contained = 4;
    assert_int_equal(tp_lock_put_cell(lock, "", &cell, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "contained is 4"));
    tp_lock_destroy(lock);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(other_engines),
        cmocka_unit_test(properties_are_compared),
        cmocka_unit_test(identities_have_rules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
