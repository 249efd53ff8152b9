/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of one step, planned on the caller's context: workspace, flops and bytes are the library's own figures. */
#include "capacity.h"

#include <string.h>

/* Decode reads the cache. So does prefill, but where the cache holds latents: its keys are then made of them before the call. */
static tp_status make_problem(const tp_capacity *capacity, const tp_layer_group *group, const tp__load *load, int decode,
                              tp_problem *problem, tp_error *error) {
    const tp_capacity_options *options = &capacity->options;
    int64_t keys = group->part == TP_PART_CROSS ? group->kv_max : load->context, rows = decode ? 1 : load->context;
    int latent = rows == 1 && group->decode_dim_qk, cached = latent || !group->decode_dim_qk;
    tp_lengths lengths = {.struct_size = sizeof lengths};
    char text[512];
    if (tp_layer_group_problem(group, decode ? load->concurrency : 1, rows, keys, text, sizeof text) != TP_OK)
        return tp__proof_fail(error, TP_INVALID, "its problem text is too long");
    TP_TRY(tp_problem_parse(text, problem, &lengths, error));
    tp_problem_dtype(problem, (tp_dtype)(group->dtype ? group->dtype : options->cache_dtype));
    if (!cached) return TP_OK;
    const tp__side *k = &capacity->format.k, *v = &capacity->format.v;
    problem->k_dtype = k->dtype ? k->dtype : options->cache_dtype;
    problem->v_dtype = v->dtype ? v->dtype : options->cache_dtype;
    problem->k_scales = k->scales, problem->v_scales = v->scales;
    problem->latent = latent;
    if (options->page_size) {
        problem->kv_layout = TP_PAGED;
        problem->page_size = options->page_size;
    }
    return TP_OK;
}

static const char *kernel_of(const tp_decision *decision) {
    return tp_decision_candidate(decision, decision->chosen)->kernel;
}

/* Of a decode call, only keys that its row sees are read. */
static double bytes_of(const tp_problem *problem, const tp_decision *decision, int decode) {
    double rows = (double)(decision->bytes_compulsory - decision->bytes_kv), keys = (double)decision->bytes_kv;
    if (decode && problem->kv_len && !problem->sparse_len)
        keys *= (double)decision->pairs / ((double)problem->batch * (double)problem->q_heads * (double)problem->kv_len);
    return rows + keys;
}

static tp_status fill(const tp_capacity *capacity, const tp_layer_group *group, const tp_problem *problem, const tp_plan *plan,
                      int decode, tp_capacity_work *work) {
    const tp_decision *decision = tp_plan_decision(plan);
    const tp_capacity_options *options = &capacity->options;
    double layers = (double)group->layer_count;
    *work = (tp_capacity_work)TP_CAPACITY_WORK_INIT;
    char *problem_text = strdup(decision->problem);
    if (!problem_text) return TP_NO_MEMORY;
    work->problem = problem_text;
    work->kernel = kernel_of(decision);
    work->exact = decision->pairs_exact;
    work->workspace_bytes = (int64_t)tp_plan_workspace(plan, options->threads);
    work->workspace_thread_bytes = (int64_t)tp_plan_workspace(plan, 1);
    work->flops = layers * decision->flops;
    work->bytes = layers * bytes_of(problem, decision, decode);
    if (!(options->gflops > 0 && options->read_gbps > 0)) return TP_OK;
    double computing = work->flops / options->gflops * 1e-9, reading = work->bytes / options->read_gbps * 1e-9;
    work->reads_bound = reading > computing;
    work->seconds = work->reads_bound ? reading : computing;
    return TP_OK;
}

tp_status tp__work_plan(const tp_capacity *capacity, const tp_layer_group *group, const tp__load *load, int decode,
                        int64_t *workspace, tp_capacity_work *work, tp_error *error) {
    tp_error why = TP_ERROR_INIT;
    tp_problem problem;
    tp_plan *plan = NULL;
    tp_choice choice = TP_CHOICE_INIT;
    char layers[128];
    choice.device = capacity->options.device;
    int on_device = choice.device != TP_CPU; /* on the CPU the context's policy counts */
    tp_status status = make_problem(capacity, group, load, decode, &problem, &why);
    if (status == TP_OK) status = tp_plan_create(capacity->context, &problem, on_device ? &choice : NULL, &plan, &why);
    if (status == TP_OK) {
        *workspace = (int64_t)tp_plan_workspace(plan, capacity->options.threads);
        if (work) status = fill(capacity, group, &problem, plan, decode, work);
        tp_plan_destroy(plan);
    }
    if (status == TP_OK) return TP_OK;
    if (status == TP_NO_MEMORY) return tp__proof_fail(error, status, "out of memory");
    if (tp_layer_group_layers(group, layers, sizeof layers) != TP_OK) strcpy(layers, "?");
    return tp__proof_fail(error, status, "%s, %s layers %s, %s: %s", capacity->model->label, tp_part_name((tp_part)group->part),
                          layers, decode ? "decode" : "prefill", why.text);
}
