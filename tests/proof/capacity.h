/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of capacity share: models with every kind of cache, and short ways to ask. */
#ifndef TEST_PROOF_CAPACITY_H
#define TEST_PROOF_CAPACITY_H

#include "support.h"

static tp_context *planner; /* one thread */

static inline tp_capacity_options load(int64_t context, int64_t concurrency) {
    tp_capacity_options options = TP_CAPACITY_OPTIONS_INIT;
    options.context = context, options.concurrency = concurrency;
    return options;
}

static inline tp_capacity *ask(const tp_model *model, tp_context *context, const tp_capacity_options *options) {
    tp_error error = TP_ERROR_INIT;
    tp_capacity *capacity;
    if (tp_capacity_create(model, context, options, &capacity, &error) != TP_OK) fail_msg("%s", error.text);
    return capacity;
}

static inline tp_capacity_cache cache_of(const tp_capacity *capacity, int group, int evicts) {
    tp_capacity_cache cache = TP_CAPACITY_CACHE_INIT;
    assert_int_equal(tp_capacity_cache_at(capacity, group, evicts, &cache), TP_OK);
    return cache;
}

static inline tp_capacity_work work_of(const tp_capacity *capacity, int group, int decode) {
    tp_capacity_work work = TP_CAPACITY_WORK_INIT;
    assert_int_equal(tp_capacity_work_at(capacity, group, decode, &work), TP_OK);
    return work;
}

static inline int64_t total_of(const tp_capacity *capacity, int evicts) {
    int64_t prefill = work_of(capacity, -1, 0).workspace_bytes, decode = work_of(capacity, -1, 1).workspace_bytes;
    return cache_of(capacity, -1, evicts).bytes + (prefill > decode ? prefill : decode);
}

static inline tp_model *declared(const char *groups) {
    char text[1024];
    snprintf(text, sizeof text, "{\"tileproof_model\": 1, \"groups\": [%s]}", groups);
    return support_model(text);
}

/* Every kind: full, window, chunk, window with first tokens, keys of another part, rows that see everything. */
static const char mixed_groups[] =
    "{\"layers\": \"0-1\", \"problem\": \"h4/2 d64 bf16 causal\"},"
    "{\"layers\": \"2-4\", \"problem\": \"h4/1 d32 bf16 causal window=36,0\"},"
    "{\"layers\": \"5\", \"problem\": \"h4/2 d64 bf16 causal chunk=48\"},"
    "{\"layers\": \"6-7\", \"problem\": \"h4/2 d64 bf16 causal window=20,0 first=5\"},"
    "{\"layers\": \"8\", \"out_of_scope\": \"mamba\"},"
    "{\"part\": \"cross\", \"layers\": \"0-2\", \"problem\": \"h4/4 d32 bf16\", \"max_positions\": 300},"
    "{\"part\": \"vision\", \"layers\": \"0-9\", \"problem\": \"h4 d32 bf16\"}";

/* deepseek's cache holds latents: one row of 32 + 16 for keys and values of all heads. */
static const char latent_config[] =
    "{\"model_type\": \"deepseek_v2\", \"hidden_size\": 256, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
    "\"num_key_value_heads\": 4, \"qk_nope_head_dim\": 32, \"qk_rope_head_dim\": 16, \"kv_lora_rank\": 32, \"v_head_dim\": 32, "
    "\"torch_dtype\": \"float32\"}";

static inline tp_context *one_thread(void) {
    tp_context_options options = TP_CONTEXT_OPTIONS_INIT;
    tp_error error = TP_ERROR_INIT;
    tp_context *context;
    options.threads = 1;
    if (tp_context_create(&options, &context, &error) != TP_OK) fail_msg("%s", error.text);
    return context;
}

#endif
