/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

const char support_config[] =
    "{\"tileproof_model\": 1, \"groups\": [{\"layers\": \"0-3\", \"problem\": \"h4/2 d64 f32 causal\"}]}";

int text_collect(void *cookie, const char *bytes, size_t size) {
    struct text *text = cookie;
    text->bytes = realloc(text->bytes, text->size + size + 1);
    assert_non_null(text->bytes);
    memcpy(text->bytes + text->size, bytes, size);
    text->size += size;
    text->bytes[text->size] = 0;
    return 0;
}

void text_replace(struct text *text, const char *from, const char *to) {
    char *at = strstr(text->bytes, from);
    assert_non_null(at);
    size_t a = strlen(from), b = strlen(to), tail = strlen(at + a);
    char *bytes = malloc(text->size + b + 1);
    assert_non_null(bytes);
    memcpy(bytes, text->bytes, (size_t)(at - text->bytes));
    memcpy(bytes + (at - text->bytes), to, b);
    memcpy(bytes + (at - text->bytes) + b, at + a, tail + 1);
    text->size = text->size - a + b;
    free(text->bytes);
    text->bytes = bytes;
}

tp_model *support_model(const char *text) {
    tp_model *model;
    tp_error error = TP_ERROR_INIT;
    if (tp_model_parse(text, strlen(text), "a/model.json", &model, &error) != TP_OK) fail_msg("%s", error.text);
    return model;
}

tp_identity support_identity(void) {
    static tp_identity *here;
    tp_error error = TP_ERROR_INIT;
    if (!here && tp_identity_detect("torch=2.4,engine=1", &here, &error) != TP_OK) fail_msg("%s", error.text);
    tp_identity copy = *here;
    copy.struct_size = sizeof copy;
    return copy;
}

tp_context *support_context(tp_policy policy, const char *disable) {
    tp_context_options options = TP_CONTEXT_OPTIONS_INIT;
    tp_error error = TP_ERROR_INIT;
    tp_context *context;
    options.policy = policy;
    options.disable = disable;
    if (tp_context_create(&options, &context, &error) != TP_OK) fail_msg("%s", error.text);
    return context;
}

tp_status support_asks(tp_context *context, const char *text) {
    tp_problem problem;
    tp_decision *decision;
    assert_int_equal(tp_problem_parse(text, &problem, NULL, NULL), TP_OK);
    tp_status status = tp_explain(context, &problem, NULL, &decision, NULL);
    tp_decision_destroy(decision);
    return status;
}

void support_pretend(tp_qualification *q) {
    tp_context *context = support_context(TP_REFUSE, NULL);
    tp_error error = TP_ERROR_INIT;
    const tp_cell *waiting;
    for (int64_t i = 0; (waiting = tp_qualification_cell(q, i)); i++) {
        tp_problem problem;
        tp_lengths lengths = {.struct_size = sizeof lengths};
        tp_decision *decision;
        tp_cell cell = *waiting;
        cell.struct_size = sizeof cell;
        assert_int_equal(tp_problem_parse(cell.problem, &problem, &lengths, &error), TP_OK);
        assert_int_equal(tp_explain(context, &problem, NULL, &decision, &error), TP_OK);
        cell.kernel = tp_decision_candidate(decision, decision->chosen)->kernel;
        cell.numerics_id = decision->numerics_id;
        cell.status = TP_CELL_QUALIFIED;
        cell.error = 1.25e-7 / 3;
        cell.bytes = 1000 + i;
        assert_int_equal(tp_qualify_restore(q, &cell, &error), TP_OK);
        tp_decision_destroy(decision);
    }
    tp_context_destroy(context);
}

tp_qualification *support_qualification(tp_model *model) {
    tp_qualify_options options = TP_QUALIFY_OPTIONS_INIT;
    tp_qualification *q;
    tp_error error = TP_ERROR_INIT;
    options.quick = 1;
    assert_int_equal(tp_qualify_create(&model, 1, &options, &q, &error), TP_OK);
    support_pretend(q);
    return q;
}

void support_put(tp_lock *lock, tp_model *model, const tp_identity *identity, const char *reason) {
    tp_qualification *q = support_qualification(model);
    tp_lock_update update = TP_LOCK_UPDATE_INIT;
    tp_error error = TP_ERROR_INIT;
    update.date = "2026-11-16";
    update.reason = reason;
    if (tp_qualify_update(q, lock, identity, &update, &error) != TP_OK) fail_msg("%s", error.text);
    tp_qualification_destroy(q);
}

void support_put_with(tp_lock *lock, const tp_qualification *q, const tp_model *model, const tp_identity *identity, int64_t which,
                      const tp_cell *instead) {
    tp_qualify_use use = TP_QUALIFY_USE_INIT;
    tp_error error = TP_ERROR_INIT;
    assert_int_equal(tp_lock_put_model(lock, model->label, model->config_hash, &error), TP_OK);
    for (int64_t i = 0; tp_qualification_use(q, i, &use) == TP_OK; i++) {
        const tp_cell *cell = use.cell == which ? instead : tp_qualification_cell(q, use.cell);
        assert_int_equal(tp_lock_put_use(lock, model->label, model->groups[use.group], cell, &error), TP_OK);
        assert_int_equal(tp_lock_put_cell(lock, identity->isa, cell, &error), TP_OK);
    }
    if (tp_lock_finish(lock, identity, "2026-11-17", "a changed cell", &error) != TP_OK) fail_msg("%s", error.text);
}

void support_put_changed(tp_lock *lock, tp_model *model, const tp_identity *identity, int64_t which,
                         void (*change)(tp_cell *cell)) {
    tp_qualification *q = support_qualification(model);
    tp_cell cell = *tp_qualification_cell(q, which);
    cell.struct_size = sizeof cell;
    change(&cell);
    support_put_with(lock, q, model, identity, which, &cell);
    tp_qualification_destroy(q);
}

struct text support_write(const tp_lock *lock) {
    struct text text = {NULL, 0};
    assert_int_equal(tp_lock_write(lock, text_collect, &text), TP_OK);
    return text;
}

struct text support_lock(tp_model *model, const tp_identity *identity) {
    tp_lock *lock;
    tp_error error = TP_ERROR_INIT;
    assert_int_equal(tp_lock_create(&lock, &error), TP_OK);
    support_put(lock, model, identity, "first");
    struct text text = support_write(lock);
    tp_lock_destroy(lock);
    return text;
}

struct text support_old_lock(void) {
    struct text text = {calloc(1, 1 << 16), 0};
    FILE *file = fopen(OLD_LOCK, "rb");
    assert_true(text.bytes && file);
    text.size = fread(text.bytes, 1, (1 << 16) - 1, file);
    fclose(file);
    return text;
}

tp_lock *support_parse(const struct text *text) {
    tp_lock *lock;
    tp_error error = TP_ERROR_INIT;
    if (tp_lock_parse(text->bytes, text->size, "t.lock", &lock, &error) != TP_OK) print_error("%s\n", error.text);
    assert_non_null(lock);
    return lock;
}
