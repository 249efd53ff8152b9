/* SPDX-License-Identifier: Apache-2.0 */
#include "check/check.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "harness/limits.h"

static uint64_t hash_text(const char *text) {
    uint64_t hash = 0xCBF29CE484222325u;
    for (; *text; text++) hash = (hash ^ (unsigned char)*text) * 0x100000001B3u;
    return hash;
}

static int group_index(struct check_list *list, const char *group) {
    for (int i = 0; i < list->group_count; i++)
        if (!strcmp(list->groups[i], group)) return i;
    if (list->group_count == MAX_GROUPS) abort();
    list->groups[list->group_count] = group;
    return list->group_count++;
}

/* The kinds in the tree, in the order of the library's table. */
static void describe_mask(const tp_problem *problem, char text[64]) {
    const tp_mask_info *info;
    size_t used = 0;
    snprintf(text, 64, "none");
    for (int i = 0; (info = tp_mask_at(i)); i++) {
        int found = 0;
        for (int n = 0; n < problem->mask_nodes; n++) found |= problem->mask[n].kind == info->kind;
        if (found && used < 64) used += (size_t)snprintf(text + used, 64 - used, "%s%s", used ? " " : "", info->name);
    }
    used = strlen(text);
    if (problem->align == TP_TOP_LEFT) snprintf(text + used, 64 - used, " top-left");
}

static void describe_style(const struct tensors_style *style, char *text, size_t size) {
    static const char *const forms[] = {"", " @heads", " @qkv", " @broadcast"};
    int used = snprintf(text, size, "%s%s%s%s%s%s%s", forms[style->form],
                        style->index64 ? " @i64" : "", style->ragged ? " @ragged" : "",
                        style->slack ? " @slack" : "", style->two_tables ? " @two-tables" : "",
                        style->short_sparse ? " @short" : "", style->lse ? "" : " @no-lse");
    if (style->gain != 0) snprintf(text + used, size - (size_t)used, " @gain-%g", style->gain);
}

struct check_case *check_add(struct check_list *list, const char *group, const char *label,
                             check_function function, struct tensors_style style,
                             const char *format, ...) {
    if (list->count == list->capacity) {
        list->capacity = list->capacity ? 2 * list->capacity : 1024;
        list->cases = realloc(list->cases, list->capacity * sizeof *list->cases);
        if (!list->cases) abort();
    }
    struct check_case *test = &list->cases[list->count++];
    *test = (struct check_case){
        .group = group_index(list, group), .rows = 64, .style = style, .function = function};
    char words[64];
    snprintf(test->label, sizeof test->label, "%s", label);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(test->text, sizeof test->text, format, arguments);
    va_end(arguments);
    describe_style(&style, words, sizeof words);
    snprintf(test->name, sizeof test->name, "%s/%s%s%s%s", group, label, *label ? " " : "",
             test->text, words);
    tp_error error = TP_ERROR_INIT;
    test->lengths.struct_size = sizeof test->lengths;
    if (tp_problem_parse(test->text, &test->problem, &test->lengths, &error) != TP_OK) {
        complain("case '%s' cannot be made: %s", test->name, error.text);
        list->broken = 1;
    }
    describe_mask(&test->problem, test->mask);
    return test;
}

void check_add_again(struct check_list *list) {
    for (size_t i = 0, count = list->count; i < count; i++) {
        const struct check_case from = list->cases[i];
        const tp_problem *p = &from.problem;
        if (p->q_dtype != TP_BF16 || p->k_dtype != TP_BF16 || p->v_dtype != TP_BF16 || p->p_dtype) continue;
        struct check_case *test =
            check_add(list, list->groups[from.group], from.label, from.function, from.style, "%s p=bf16", from.text);
        test->slow = from.slow;
        test->rows = from.rows;
        test->again = 1;
        test->loops = from.loops;
    }
}

int check_fail(struct check_env *env, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(env->reason, sizeof env->reason, format, arguments);
    va_end(arguments);
    return 1;
}

int check_make(struct check_env *env, struct tensors *tensors, const tp_problem *problem,
               const tp_lengths *lengths, const struct tensors_style *style) {
    if (tensors_create(tensors, problem, lengths, style) ||
        tensors_fill(tensors, env->seed ^ hash_text(env->test->name)))
        return check_fail(env, "the tensors could not be allocated");
    tensors->arithmetic = env->arithmetic;
    return 0;
}

int check_make_own(struct check_env *env, struct tensors *tensors) {
    const struct check_case *test = env->test;
    return check_make(env, tensors, &test->problem, &test->lengths, &test->style);
}

int check_oracle(struct check_env *env, struct tensors *tensors) {
    struct oracle oracle;
    struct measured_error measured;
    tp_error error = TP_ERROR_INIT;
    if (oracle_create(&oracle, tensors, INT64_MAX, env->seed, &error) != TP_OK)
        return check_fail(env, "the reference refused: %s", error.text);
    int failed = oracle_compare(&oracle, tensors, env->ran, &measured, env->reason, sizeof env->reason);
    oracle_destroy(&oracle);
    return failed;
}

int check_outputs_poison(const struct check_env *env, int poison) { return env->device == TP_CPU ? poison : 0x7F; }

int check_attend_by(struct check_env *env, struct tensors *tensors, enum entry entry, int threads,
                    int poison, tp_receipt *receipt) {
    tp_choice choice = TP_CHOICE_INIT;
    choice.policy = TP_PERMIT;
    choice.kernel = env->kernel->name;
    choice.strategy = env->strategy;
    choice.device = env->device;
    struct attempt attempt = {.context = env->context,
                              .choice = &choice,
                              .workspace = &env->workspace,
                              .entry = entry,
                              .threads = threads,
                              .poison = poison};
    tp_error error = TP_ERROR_INIT;
    const double loss = (double)(threads + poison) / 1024; /* any number: it comes back, and changes nothing else */
    tensors_poison_outputs(tensors, check_outputs_poison(env, poison));
    tensors->call.kv_loss = &loss;
    tp_status status = attempt_run(&attempt, tensors, receipt, &error);
    tensors->call.kv_loss = NULL;
    if (status != TP_OK)
        return check_fail(env, "expected TP_OK, got %s: %s", tp_status_name(status), error.text);
    env->ran = receipt->arithmetic;
    if (receipt->kv_loss != loss) return check_fail(env, "a loss of %g was said, the receipt has %g", loss, receipt->kv_loss);
    /* Where there is no pair to score no kernel function does, and the receipt names no kernel. */
    const char *ran = receipt->kernel ? receipt->kernel : "none";
    const char *expected = receipt->pairs_visible ? env->kernel->name : ran;
    if (strcmp(ran, expected))
        return check_fail(env, "asked for kernel %s, the receipt names %s", expected, ran);
    return 0;
}

int check_attend(struct check_env *env, struct tensors *tensors) {
    tp_receipt receipt;
    int threads = 1 + (int)(hash_text(env->test->name) % 3);
    return check_attend_by(env, tensors, ENTRY_SERIAL, threads, 0xFF, &receipt);
}

int check_rows_equal(const struct tensors *a, tp_row in_a, const struct tensors *b, tp_row in_b,
                     int64_t *column) {
    size_t unit = tp_dtype_bytes(tensors_dtype(a, TENSOR_O));
    int same = !memcmp(tensors_at(a, TENSOR_O, in_a.seq, in_a.row, in_a.head, 0),
                       tensors_at(b, TENSOR_O, in_b.seq, in_b.row, in_b.head, 0), (size_t)a->problem.head_dim_v * unit);
    for (int64_t x = -1; x < (same ? 0 : a->problem.head_dim_v); x++) {
        enum tensor_id id = x < 0 ? TENSOR_LSE : TENSOR_O;
        if (x < 0 && (!a->style.lse || !b->style.lse)) continue;
        const void *left = tensors_at(a, id, in_a.seq, in_a.row, in_a.head, x < 0 ? 0 : x);
        const void *right = tensors_at(b, id, in_b.seq, in_b.row, in_b.head, x < 0 ? 0 : x);
        if (!memcmp(left, right, x < 0 ? sizeof(float) : unit)) continue;
        tp_dtype dtype = tensors_dtype(a, id);
        if (isnan(tp_to_float(dtype, left)) && isnan(tp_to_float(dtype, right))) continue;
        *column = x;
        return 0;
    }
    return 1;
}

int check_same_row(struct check_env *env, const char *what, const struct tensors *a, tp_row in_a,
                   const struct tensors *b, tp_row in_b) {
    int64_t x;
    if (check_rows_equal(a, in_a, b, in_b, &x)) return 0;
    enum tensor_id id = x < 0 ? TENSOR_LSE : TENSOR_O;
    if (x < 0) x = 0;
    return check_fail(env,
                      "%s: %s of seq %" PRId64 " head %" PRId64 " row %" PRId64 " column %" PRId64
                      ": expected equal bits, got %.9g and %.9g",
                      what, id == TENSOR_O ? "o" : "lse", in_a.seq, in_a.head, in_a.row, x,
                      (double)tensors_get(a, id, in_a.seq, in_a.row, in_a.head, x),
                      (double)tensors_get(b, id, in_b.seq, in_b.row, in_b.head, x));
}

int check_same_rows(struct check_env *env, const char *what, const struct tensors *a,
                    const struct tensors *b) {
    for (int64_t s = 0; s < a->sequences; s++)
        for (int64_t h = 0; h < a->problem.q_heads; h++)
            for (int64_t r = 0; r < a->q_lens[s]; r++) {
                tp_row row = {s, h, r};
                if (check_same_row(env, what, a, row, b, row)) return 1;
            }
    return 0;
}

void check_copy(struct tensors *to, int64_t to_seq, const struct tensors *from, int64_t from_seq,
                enum tensor_id id, int64_t tokens) {
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t h = 0; h < tensors_heads(from, id); h++) tensors_copy_row(to, to_seq, t, from, from_seq, t, id, h);
}

static int compare_with_oracle(struct check_env *env, struct tensors *tensors,
                              const struct oracle *oracle) {
    struct measured_error measured;
    tp_receipt receipt;
    int threads = 1 + (int)(hash_text(env->test->name) % 3);
    if (check_attend_by(env, tensors, ENTRY_SERIAL, threads, 0xFF, &receipt)) return 1;
    if (receipt.scores_written && strcmp(env->kernel->strategy, "math"))
        return check_fail(env, "expected no scores written, the receipt says %" PRId64,
                          receipt.scores_written);
    return tensors_badly_written(tensors, env->reason, sizeof env->reason) ||
           oracle_compare(oracle, tensors, receipt.arithmetic, &measured, env->reason, sizeof env->reason);
}

/* Data and reference, made once, which serve all kernels; gradients of a backward case. */
struct subject {
    struct tensors tensors;
    struct oracle oracle;
    struct gradients gradients;
    struct gradients_oracle gradients_oracle;
};

static int make_subject(struct check_env *env, struct subject *subject) {
    const struct check_case *test = env->test;
    tp_error error = TP_ERROR_INIT;
    tp_status status;
    if (test->function) return 0;
    if (check_make(env, &subject->tensors, &test->problem, &test->lengths, &test->style)) return 1;
    if (test->problem.op == TP_BACKWARD) {
        if (gradients_create(&subject->gradients, &subject->tensors, &test->lengths, hash_text(test->name)))
            return check_fail(env, "the gradients could not be allocated");
        status = gradients_oracle_create(&subject->gradients_oracle, &subject->tensors, &subject->gradients, &error);
    } else {
        status = oracle_create(&subject->oracle, &subject->tensors, test->rows, env->seed, &error);
    }
    return status == TP_OK ? 0 : check_fail(env, "the reference refused: %s", error.text);
}

static int try_subject(struct check_env *env, struct subject *subject) {
    if (env->test->function) return env->test->function(env);
    if (env->test->problem.op != TP_BACKWARD) return compare_with_oracle(env, &subject->tensors, &subject->oracle);
    int threads = 1 + (int)(hash_text(env->test->name) % 3);
    return check_gradients(env, &subject->tensors, &subject->gradients, ENTRY_SERIAL, threads, 0xFF) ||
           gradients_compare(&subject->gradients_oracle, &subject->tensors, &subject->gradients, env->reason,
                             sizeof env->reason);
}

int check_takes(const struct check_env *env, const tp_problem *problem, char *why, size_t size) {
    tp_choice choice = TP_CHOICE_INIT;
    tp_decision *decision = NULL;
    const tp_candidate *candidate;
    const tp_reason *reason;
    why[0] = 0;
    if (env->device == TP_CPU) return kernel_takes(env->kernel, problem);
    choice.policy = TP_PERMIT;
    choice.kernel = env->kernel->name;
    choice.device = env->device;
    tp_status status = tp_explain(env->context, problem, &choice, &decision, NULL);
    for (int i = 0; decision && status == TP_UNSUPPORTED && (candidate = tp_decision_candidate(decision, i)); i++)
        if (!strcmp(candidate->kernel, env->kernel->name) && (reason = tp_candidate_reason(candidate, 0)))
            snprintf(why, size, "%s", reason->text);
    tp_decision_destroy(decision);
    return status != TP_UNSUPPORTED;
}

void check_run_case(struct check_env *env, const struct check_kernels *kernels,
                    struct outcome_of *outcomes) {
    struct subject subject = {0};
    int broken = make_subject(env, &subject);
    for (int i = 0; i < kernels->count; i++) {
        env->kernel = kernels->selected[i];
        if (env->test->again && env->kernel->arithmetic == TP_ARITHMETIC_F32) continue; /* NOT_SELECTED */
        char why[256];
        if (!check_takes(env, &env->test->problem, why, sizeof why) || (env->device != TP_CPU && env->test->loops)) {
            outcomes[i].outcome = BEYOND_LIMIT;
            outcomes[i].reason = strdup(why);
            continue;
        }
        int failed = broken || try_subject(env, &subject);
        outcomes[i].outcome = failed ? FAILED : PASSED;
        if (failed) outcomes[i].reason = strdup(env->reason);
    }
    oracle_destroy(&subject.oracle);
    gradients_oracle_destroy(&subject.gradients_oracle);
    gradients_destroy(&subject.gradients);
    tensors_destroy(&subject.tensors);
}
