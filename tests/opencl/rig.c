/* SPDX-License-Identifier: Apache-2.0 */
#include "opencl/rig.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const shim *rig_shim(void) {
    static const shim *found;
    if (found != NULL) return found;
    void *library = dlopen(TILEPROOF_SHIM, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) fail_msg("%s", dlerror());
    shim_of_function of = (shim_of_function)(uintptr_t)dlsym(library, "shim_of");
    assert_non_null(of);
    found = of();
    return found;
}

tp_opencl_options rig_options(void) {
    tp_opencl_options options = TP_OPENCL_OPTIONS_INIT;
    options.library = TILEPROOF_SHIM;
    options.number = RIG_DEVICE;
    return options;
}

int rig_has_device(void) {
    tp_opencl *cl = NULL;
    tp_opencl_device device = {.struct_size = sizeof device};
    tp_opencl_options options = TP_OPENCL_OPTIONS_INIT;
    if (tp_opencl_create(&options, &cl, NULL) != TP_OK) return 0;
    tp_opencl_device_of(cl, &device);
    if (!device.usable) printf("not run here: %s\n", device.why);
    int usable = device.usable;
    tp_opencl_destroy(cl);
    return usable;
}

tp_choice rig_choice(void) {
    tp_choice choice = TP_CHOICE_INIT;
    choice.device = RIG_DEVICE;
    return choice;
}

rig rig_open(const tp_opencl_options *given) {
    tp_opencl_options options = given != NULL ? *given : rig_options();
    tp_context_options wanted = TP_CONTEXT_OPTIONS_INIT;
    tp_error error = TP_ERROR_INIT;
    rig r = {NULL, NULL};
    if (tp_opencl_create(&options, &r.cl, &error) != TP_OK) fail_msg("%s", error.text);
    wanted.threads = 1;
    wanted.backend = tp_opencl_backend(r.cl);
    if (tp_context_create(&wanted, &r.context, &error) != TP_OK) fail_msg("%s", error.text);
    return r;
}

void rig_close(rig *r) {
    tp_context_destroy(r->context);
    tp_opencl_destroy(r->cl);
    assert_int_equal(rig_shim()->live(), 0);
}

static tp_status run(const rig *r, struct tensors *tensors, rig_indices where, tp_receipt *receipt, tp_error *error) {
    tp_choice choice = rig_choice();
    struct workspace none = {0};
    struct attempt attempt = {.context = r->context,
                              .choice = &choice,
                              .workspace = &none,
                              .entry = where == RIG_ON_DEVICE ? ENTRY_CALLER : ENTRY_SERIAL,
                              .threads = 1,
                              .poison = 0xFF};
    return attempt_run(&attempt, tensors, receipt, error);
}

static void parse(const char *text, tp_problem *problem, tp_lengths *lengths) {
    tp_error error = TP_ERROR_INIT;
    *lengths = (tp_lengths){.struct_size = sizeof *lengths};
    if (tp_problem_parse(text, problem, lengths, &error) != TP_OK) fail_msg("%s: %s", text, error.text);
}

static const char *compare_gradients(const rig *r, struct tensors *t, const tp_lengths *lengths, rig_indices where,
                                     tp_receipt *receipt, char reason[640]) {
    struct gradients gradients;
    struct gradients_oracle oracle = {0};
    tp_error error = TP_ERROR_INIT;
    if (gradients_create(&gradients, t, lengths, 7)) fail_msg("no memory");
    t->problem.op = TP_FORWARD;
    tp_status status = run(r, t, where, receipt, &error);
    t->problem.op = TP_BACKWARD;
    if (status == TP_OK) status = gradients_oracle_create(&oracle, t, &gradients, &error);
    if (status == TP_OK) status = run(r, t, where, receipt, &error);
    if (status != TP_OK)
        snprintf(reason, 640, "%s: %s", tp_status_name(status), error.text);
    else
        for (int id = TENSOR_Q; id <= TENSOR_V && !reason[0]; id++)
            if (!tensors_one_badly_written(&gradients.held, (enum tensor_id)id, "a gradient", reason, 640)) reason[0] = 0;
    if (!reason[0] && !gradients_compare(&oracle, t, &gradients, reason, 640)) reason[0] = 0;
    gradients_oracle_destroy(&oracle);
    gradients_destroy(&gradients);
    return reason;
}

/* Pairs that rows see, one by one. */
static int64_t pairs_of(const struct tensors *t) {
    int64_t pairs = 0;
    for (int64_t seq = 0; seq < t->sequences; seq++)
        for (int64_t row = 0; row < t->q_lens[seq]; row++)
            for (int64_t key = 0; key < t->kv_lens[seq]; key++)
                pairs += tp_mask_visible(&t->problem, &t->call, seq, 0, row, key) == 1;
    return pairs * t->problem.q_heads;
}

static const char *compare(const rig *r, struct tensors *t, rig_indices where, tp_receipt *receipt, char reason[640]) {
    struct oracle oracle;
    struct measured_error measured;
    tp_error error = TP_ERROR_INIT;
    tp_status status = oracle_create(&oracle, t, 96, 1, &error);
    if (status == TP_OK) status = run(r, t, where, receipt, &error);
    if (status != TP_OK)
        snprintf(reason, 640, "%s: %s", tp_status_name(status), error.text);
    else if (receipt->pairs_visible != pairs_of(t))
        snprintf(reason, 640, "the device counted %lld pairs, rows see %lld", (long long)receipt->pairs_visible,
                 (long long)pairs_of(t));
    else if (!tensors_badly_written(t, reason, 640) && !oracle_compare(&oracle, t, t->arithmetic, &measured, reason, 640))
        reason[0] = 0;
    oracle_destroy(&oracle);
    return reason;
}

const char *rig_check(const rig *r, const char *text, const struct tensors_style *style, rig_indices where, tp_receipt *receipt) {
    static const struct tensors_style plain = {.lse = 1};
    static char reason[640];
    struct tensors tensors;
    tp_problem problem;
    tp_lengths lengths;
    tp_receipt here;
    if (receipt == NULL) receipt = &here;
    parse(text, &problem, &lengths);
    reason[0] = 0;
    if (tensors_create(&tensors, &problem, &lengths, style ? style : &plain) || tensors_fill(&tensors, 5)) fail_msg("no memory");
    tensors.arithmetic = TP_ARITHMETIC_OPENCL;
    const char *wrong = problem.op == TP_BACKWARD ? compare_gradients(r, &tensors, &lengths, where, receipt, reason)
                                                  : compare(r, &tensors, where, receipt, reason);
    tensors_destroy(&tensors);
    return wrong;
}

void rig_check_right(const rig *r, const char *text, const struct tensors_style *style, rig_indices where) {
    tp_receipt receipt;
    const char *wrong = rig_check(r, text, style, where, &receipt);
    if (wrong[0]) fail_msg("%s: %s", text, wrong);
    if (receipt.tiles > 0) assert_string_equal(receipt.kernel, "opencl");
}

tp_status rig_try(const rig *r, const char *text, tp_receipt *receipt, tp_error *error) {
    static const struct tensors_style plain = {.lse = 1};
    struct tensors tensors;
    tp_problem problem;
    tp_lengths lengths;
    tp_receipt here;
    parse(text, &problem, &lengths);
    if (tensors_create(&tensors, &problem, &lengths, &plain) || tensors_fill(&tensors, 5)) fail_msg("no memory");
    tp_status status = run(r, &tensors, RIG_ON_HOST, receipt ? receipt : &here, error);
    tensors_destroy(&tensors);
    return status;
}
