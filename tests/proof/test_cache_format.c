/* SPDX-License-Identifier: Apache-2.0 */
/* Caches that lose something: their formats in words, the cells of models with them, locks, preflight, refusals. */
#include "support.h"

/* A decoder with a window beside full layers, and an encoder that keeps nothing. */
static const char parts[] = "{\"tileproof_model\": 1, \"groups\": ["
                            "{\"layers\": \"0\", \"max_positions\": 400, \"problem\": \"h4/2 d32 bf16 causal\"},"
                            "{\"layers\": \"1\", \"max_positions\": 400, \"problem\": \"h4/2 d64 bf16 causal window=63,0\"},"
                            "{\"part\": \"vision\", \"layers\": \"0\", \"max_positions\": 61, "
                            "\"problem\": \"h2 d32 bf16 packed\"}]}";
static const char latents[] =
    "{\"model_type\": \"deepseek_v2\", \"hidden_size\": 256, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
    "\"num_key_value_heads\": 4, \"qk_nope_head_dim\": 32, \"qk_rope_head_dim\": 32, \"kv_lora_rank\": 32, \"v_head_dim\": 32, "
    "\"max_position_embeddings\": 300, \"torch_dtype\": \"bfloat16\"}";
#define SCHEME(text)                                                                                                             \
    "{\"model_type\": \"llama\", \"hidden_size\": 128, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "                   \
    "\"num_key_value_heads\": 2, \"intermediate_size\": 64, \"max_position_embeddings\": 200, \"torch_dtype\": \"bfloat16\", "   \
    "\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"kv_cache_scheme\": " text "}}"
static const char scheme[] = SCHEME(
    "{\"num_bits\": 8, \"type\": \"float\", \"strategy\": \"tensor\", \"dynamic\": false, \"symmetric\": true, "
    "\"group_size\": null, \"observer\": \"minmax\"}");

static const char *const formats[] = {"i8/token",    "i8/q8_0",    "i4/group",           "e4m3/tensor",
                                      "e4m3/token", "plain:i8/token", "e4m3/token:i4/group"};
enum { FORMATS = sizeof formats / sizeof *formats };

static void says(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("'%s' lacks '%s'", text, part);
}

static void words_become_names(void **state) {
    (void)state;
    static const char *const good[][2] = {{NULL, "plain"},
                                          {"", "plain"},
                                          {"plain", "plain"},
                                          {"plain:plain", "plain"},
                                          {"i8", "i8/token"},
                                          {"i8:i8/token", "i8/token"},
                                          {"i8/q8_0", "i8/q8_0"},
                                          {"i4", "i4/group"},
                                          {"e4m3", "e4m3/tensor"},
                                          {"e4m3/token:i4", "e4m3/token:i4/group"},
                                          {"plain:i8", "plain:i8/token"},
                                          {"e4m3:plain", "e4m3/tensor:plain"}};
    static const char *const bad[] = {"fp8", "i", "i88", "i8/", "i8/group", "i8/tok", "i4/token", "e4m3/q8_0", "plain/token",
                                      "i8:", ":i8", "i8:i8:i8", "I8", " i8", "any", "q8_0", "\xff"};
    char name[64];
    tp_error error = TP_ERROR_INIT;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(tp_cache_format_name(good[i][0], name, sizeof name, &error), TP_OK);
        assert_string_equal(name, good[i][1]);
        assert_int_equal(tp_cache_format_name(name, name, sizeof name, &error), TP_OK); /* a name is its own */
        assert_string_equal(name, good[i][1]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        strcpy(name, "before");
        assert_int_equal(tp_cache_format_name(bad[i], name, sizeof name, &error), TP_INVALID);
        assert_string_equal(name, "");
    }
    assert_int_equal(tp_cache_format_name("fp8", name, sizeof name, &error), TP_INVALID);
    assert_string_equal(error.text,
                        "cache is 'fp8': it must be plain, i8, i8/q8_0, i4, e4m3 or e4m3/token, or two of these as K:V");
    assert_int_equal(tp_cache_format_name("i8", name, 8, &error), TP_INVALID);
    says(error.text, "size is 8: 'i8/token' needs 9 bytes");
    assert_int_equal(tp_cache_format_name("i8", name, 9, &error), TP_OK);
    assert_int_equal(tp_cache_format_name("i8", NULL, 9, &error), TP_INVALID);
}

static void calls_in_words(void **state) {
    (void)state;
    tp_model *model = support_model(parts), *deep = support_model(latents), *bare;
    const tp_layer_group *full = model->groups[0], *vision = model->groups[2];
    char text[256];
    bare = support_model("{\"model_type\": \"llama\", \"hidden_size\": 256, \"num_hidden_layers\": 1, "
                         "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"intermediate_size\": 64}");
    const struct {
        const tp_layer_group *group;
        const char *cache;
        int64_t rows;
        const char *text;
    } calls[] = {{full, "i8", 1, "decode b1 h4/2 q1 k90 d32 bf16:i8:i8->bf16 causal"},
                 {full, "i8/q8_0", 90, "prefill b1 h4/2 q90 k90 d32 bf16:i8:i8->bf16 scales=q8_0:q8_0 causal"},
                 {full, "plain:e4m3/token", 1, "decode b1 h4/2 q1 k90 d32 bf16:bf16:e4m3->bf16 scales=token causal"},
                 {full, "e4m3/token:i4", 1, "decode b1 h4/2 q1 k90 d32 bf16:e4m3:i4->bf16 scales=token:group causal"},
                 {full, "plain", 1, "decode b1 h4/2 q1 k90 d32 bf16 causal"},
                 {full, NULL, 1, "decode b1 h4/2 q1 k90 d32 bf16 causal"},
                 {vision, "i8", 90, "prefill b1 h2/2 q90 k90 d32 bf16 packed"},
                 {bare->groups[0], "i4", 1, "decode b1 h4/2 q1 k90 d64 bf16:i4:i4->bf16 causal"},
                 {bare->groups[0], NULL, 1, "decode b1 h4/2 q1 k90 d64 causal"},
                 {deep->groups[0], "i8", 1, "decode b1 h4/1 q1 k90 d64/32 bf16:i8:i8->bf16 causal"},
                 {deep->groups[0], "i8", 90, "prefill b1 h4/4 q90 k90 d64/32 bf16 causal"}};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        tp_problem problem;
        tp_error error = TP_ERROR_INIT;
        assert_int_equal(
            tp_layer_group_problem_in(calls[i].group, calls[i].cache, 1, calls[i].rows, 90, text, sizeof text), TP_OK);
        assert_memory_equal(text, calls[i].text, strlen(calls[i].text)); /* a scale may stand behind it */
        if (tp_problem_parse(text, &problem, NULL, &error) != TP_OK) fail_msg("%s: %s", text, error.text);
    }
    assert_int_equal(tp_layer_group_problem_in(full, "fp8", 1, 1, 90, text, sizeof text), TP_INVALID);
    assert_string_equal(text, "");
    assert_int_equal(tp_layer_group_problem_in(full, "i8", 1, 1, 90, text, 30), TP_INVALID);
    tp_model_destroy(model);
    tp_model_destroy(deep);
    tp_model_destroy(bare);
}

static void rows_of_layers(void **state) {
    (void)state;
    tp_cache_layer rows[2] = {TP_CACHE_LAYER_INIT, TP_CACHE_LAYER_INIT}, before[2];
    tp_error error = TP_ERROR_INIT;
    rows[1].kv_heads = 2, rows[1].head_dim_qk = rows[1].head_dim_v = 64;
    memcpy(before, rows, sizeof rows);
    assert_int_equal(tp_cache_format_layers("i8:fp8", rows, 2, &error), TP_INVALID);
    assert_int_equal(tp_cache_format_layers("i8", NULL, 2, &error), TP_INVALID);
    assert_int_equal(tp_cache_format_layers("i8", rows, -1, &error), TP_INVALID);
    assert_int_equal(tp_cache_format_layers("plain", rows, 2, &error), TP_OK);
    assert_memory_equal(before, rows, sizeof rows);
    assert_int_equal(tp_cache_format_layers("e4m3:i4", rows, 2, &error), TP_OK);
    assert_memory_equal(before, rows, sizeof *rows); /* it keeps nothing */
    assert_true(rows[1].k_dtype == TP_E4M3 && rows[1].k_scales == TP_SCALES_TENSOR && rows[1].k_scale == 1);
    assert_true(rows[1].v_dtype == TP_I4 && rows[1].v_scales == TP_SCALES_GROUP && rows[1].v_scale == 0);
}

static tp_qualification *cells_with(tp_model *model, const char *cache, int64_t max) {
    tp_qualify_options options = TP_QUALIFY_OPTIONS_INIT;
    tp_qualification *q;
    tp_error error = TP_ERROR_INIT;
    options.quick = 1, options.max_cells = max, options.cache = cache;
    if (tp_qualify_create(&model, 1, &options, &q, &error) != TP_OK) fail_msg("%s", error.text);
    return q;
}

/* As many cells as without, of the same lengths; those that read the cache say how. */
static void cells_read_the_cache(void **state) {
    (void)state;
    tp_model *models[] = {support_model(parts), support_model(latents)};
    for (int m = 0; m < 2; m++) {
        tp_qualification *plain = cells_with(models[m], NULL, 0), *q = cells_with(models[m], "i8", 0);
        tp_qualify_use use = TP_QUALIFY_USE_INIT, same = TP_QUALIFY_USE_INIT;
        int64_t i = 0;
        for (; tp_qualification_use(q, i, &use) == TP_OK; i++) {
            const tp_cell *cell = tp_qualification_cell(q, use.cell);
            const tp_layer_group *group = models[m]->groups[use.group];
            assert_int_equal(tp_qualification_use(plain, i, &same), TP_OK);
            assert_true(same.group == use.group && same.phase == use.phase);
            assert_string_equal(tp_qualification_cell(plain, same.cell)->purpose, cell->purpose);
            int reads = group->part == TP_PART_TEXT &&
                        (!group->decode_dim_qk || use.phase == TP_QUALIFY_DECODE || use.phase == TP_QUALIFY_MIXED);
            assert_int_equal(strstr(cell->problem, " bf16:i8:i8->bf16 ") != NULL, reads);
            assert_int_equal(cell->status, TP_CELL_NOT_RUN);
        }
        assert_true(i > 5);
        assert_int_equal(tp_qualification_use(plain, i, &same), TP_INVALID);
        tp_qualification_destroy(plain);
        tp_qualification_destroy(q);
        tp_model_destroy(models[m]);
    }
}

/* Right by the reference on what is stored, with the loss beside it; what reads no such cache loses nothing. */
static void cells_run(void **state) {
    (void)state;
    static const double bound[] = {0.0041, 0.0042, 0.075, 0.0626, 0.04, 0.0041, 0.075};
    tp_context_options one = TP_CONTEXT_OPTIONS_INIT;
    tp_context *contexts[2] = {support_context(TP_REFUSE, NULL)}; /* all threads for the first format */
    one.threads = 1;
    assert_int_equal(tp_context_create(&one, &contexts[1], NULL), TP_OK);
    for (int f = 0; f < FORMATS; f++)
        for (int m = 0; m < 2; m++) {
            tp_context *context = contexts[f > 0];
            tp_model *model = support_model(m ? latents : parts);
            tp_qualification *q = cells_with(model, formats[f], 0);
            tp_error error = TP_ERROR_INIT;
            const tp_cell *cell;
            int split = strchr(formats[f], ':') != NULL; /* v of latents is part of k, so both must be alike */
            if (tp_qualify_run(q, context, NULL, &error) != TP_OK) fail_msg("%s", error.text);
            for (int64_t i = 0; (cell = tp_qualification_cell(q, i)); i++) {
                int codes = strchr(cell->problem, '>') != NULL, refused = split && strstr(cell->problem, " latent") != NULL;
                if (cell->status != (refused ? TP_CELL_UNSUPPORTED : TP_CELL_QUALIFIED))
                    fail_msg("%s: %s: %s", formats[f], cell->problem, cell->reason);
                if (refused) {
                    says(cell->reason, "v must be part of k's rows");
                    continue;
                }
                assert_int_equal(strstr(cell->numerics_id, " v=") != NULL, codes);
                if (codes ? !(cell->loss > 0 && cell->loss < bound[f]) : cell->loss != 0)
                    fail_msg("%s: %s: loss %g", formats[f], cell->problem, cell->loss);
                assert_true(cell->error > 0 && cell->error <= cell->allowed && cell->output[0]);
            }
            tp_qualification_destroy(q);
            tp_model_destroy(model);
        }
    tp_context_destroy(contexts[0]);
    tp_context_destroy(contexts[1]);
}

/* A head dim that a format does not take is refused with the rule, cell by cell. */
static void head_dims_that_do_not_go(void **state) {
    (void)state;
    tp_model *model =
        support_model("{\"tileproof_model\": 1, \"groups\": [{\"layers\": \"0\", \"problem\": \"h4/2 d80 bf16 causal\"}]}");
    tp_qualification *q = cells_with(model, "i8/q8_0", 1);
    const tp_cell *cell;
    for (int64_t i = 0; (cell = tp_qualification_cell(q, i)); i++) {
        assert_int_equal(cell->status, TP_CELL_UNSUPPORTED);
        says(cell->reason, "k_scales is q8_0 with head dim 80: it must be a multiple of 32");
    }
    assert_int_equal(tp_qualification_status(q), TP_CELL_UNSUPPORTED);
    tp_qualification_destroy(q);
    tp_model_destroy(model);
}

static tp_status on_engine(void *user, const tp_engine_call *call, tp_engine_answer *answer) {
    (void)call, (void)answer;
    (*(int *)user)++;
    return TP_UNSUPPORTED;
}

/* An engine is given plain keys: cells with others are refused before it is asked. */
static void engines_are_not_asked(void **state) {
    (void)state;
    tp_model *model = support_model(scheme);
    tp_qualification *q = cells_with(model, "e4m3", 1);
    tp_context *context = support_context(TP_REFUSE, NULL);
    tp_qualify_run_options run = TP_QUALIFY_RUN_OPTIONS_INIT;
    tp_engine engine = TP_ENGINE_INIT;
    int asked = 0;
    engine.run = on_engine, engine.user = &asked;
    run.engine = &engine;
    assert_int_equal(tp_qualify_run(q, context, &run, NULL), TP_OK);
    for (int64_t i = 0; tp_qualification_cell(q, i); i++)
        says(tp_qualification_cell(q, i)->reason, "engines are not asked for a quantised cache");
    assert_int_equal(asked, 0);
    tp_context_destroy(context);
    tp_qualification_destroy(q);
    tp_model_destroy(model);
}

static tp_qualification *pretended(tp_model *model, const char *cache) {
    tp_qualification *q = cells_with(model, cache, 0);
    support_pretend(q);
    return q;
}

static void put(tp_lock *lock, tp_model *model, const char *cache) {
    tp_qualification *q = pretended(model, cache);
    tp_identity identity = support_identity();
    tp_lock_update update = TP_LOCK_UPDATE_INIT;
    tp_error error = TP_ERROR_INIT;
    update.date = "2026-11-18", update.reason = "a cache";
    if (tp_qualify_update(q, lock, &identity, &update, &error) != TP_OK) fail_msg("%s", error.text);
    tp_qualification_destroy(q);
}

/* How many cells a lock lists, and how many of them read codes. */
static void listed(const tp_lock *lock, const char *cache, int64_t *all, int64_t *codes) {
    tp_identity identity = support_identity();
    tp_cell cell = TP_CELL_INIT, found = TP_CELL_INIT;
    identity.cache = cache;
    *codes = 0;
    for (*all = 0; tp_lock_cell_of(lock, &identity, *all, &cell) == TP_OK; ++*all) {
        *codes += strchr(cell.problem, '>') != NULL;
        assert_int_equal(tp_lock_cell_for(lock, &identity, cell.problem, &found), TP_OK);
    }
}

/* Each cache is a revision of its own, with its name; one does not take another's place. */
static void locks_keep_caches_apart(void **state) {
    (void)state;
    tp_model *model = support_model(parts);
    tp_identity identity = support_identity();
    tp_lock *lock, *again;
    tp_error error = TP_ERROR_INIT;
    tp_lock_revision one = TP_LOCK_REVISION_INIT;
    int64_t plain, i8, any, codes, at = 0, same;
    char why[512];
    assert_int_equal(tp_lock_create(&lock, &error), TP_OK);
    put(lock, model, NULL);
    put(lock, model, "i8");
    struct text text = support_write(lock);
    lock = (tp_lock_destroy(lock), support_parse(&text));
    static const char *const caches[] = {"plain", "i8/token"};
    for (; tp_lock_revision_at(lock, at, &one) == TP_OK; at++) {
        assert_string_equal(one.cache, caches[at]);
        assert_int_equal(tp_lock_revision_fresh(lock, at, &identity, why, sizeof why), at ? TP_UNSUPPORTED : TP_OK);
        if (at) assert_string_equal(why, "cache: lock has i8/token, here plain");
        identity.cache = "any";
        assert_int_equal(tp_lock_revision_fresh(lock, at, &identity, why, sizeof why), TP_OK);
        identity.cache = "plain";
    }
    assert_int_equal(at, 2);
    assert_int_equal(tp_lock_fresh(lock, &identity, why, sizeof why), TP_OK);
    listed(lock, "", &plain, &codes);
    assert_true(plain > 5 && codes == 0);
    listed(lock, "i8/token", &i8, &codes);
    assert_true(i8 == plain && codes > 3 && codes < i8);
    same = i8 - codes; /* cells of the encoder: both revisions have them */
    listed(lock, "any", &any, &codes);
    assert_int_equal(any, plain + i8 - same);
    tp_cell cell = TP_CELL_INIT;
    for (at = 0; tp_lock_cell_at(lock, identity.isa, at, &cell) == TP_OK; at++)
        ;
    assert_int_equal(at, any);
    listed(lock, "i4/group", &any, &codes);
    assert_int_equal(any, 0);
    tp_qualification *q;
    assert_int_equal(tp_qualify_create_again(lock, identity.isa, NULL, &q, &error), TP_OK);
    for (at = 0; tp_qualification_cell(q, at); at++)
        ;
    assert_int_equal(at, plain + i8 - same);
    tp_qualification_destroy(q);
    /* the same again joins its revision; another cache does not push it out */
    again = support_parse(&text);
    put(again, model, "i8/token");
    for (at = 0; tp_lock_revision_at(again, at, &one) == TP_OK; at++)
        ;
    assert_int_equal(at, 2);
    for (int f = 0; f < FORMATS; f++) put(again, model, formats[f]);
    for (at = 0; tp_lock_revision_at(again, at, &one) == TP_OK; at++)
        ;
    assert_int_equal(at, 1 + FORMATS);
    tp_lock_destroy(again);
    tp_lock_destroy(lock);
    tp_model_destroy(model);
    free(text.bytes);
}

static void compared_by_cache(void **state) {
    (void)state;
    tp_model *model = support_model(parts);
    tp_qualification *q = pretended(model, "i8"), *plain = pretended(model, NULL);
    tp_identity identity = support_identity();
    tp_lock *lock;
    tp_error error = TP_ERROR_INIT;
    tp_lock_update update = TP_LOCK_UPDATE_INIT;
    update.date = "2026-11-18", update.reason = "a cache";
    assert_int_equal(tp_lock_create(&lock, &error), TP_OK);
    identity.cache = "i4/group";
    assert_int_equal(tp_qualify_update(q, lock, &identity, &update, &error), TP_INVALID);
    assert_string_equal(error.text, "cache is 'i4/group': these cells were made for i8/token");
    assert_int_equal(tp_qualify_compare(q, lock, &identity, &error), TP_INVALID);
    identity.cache = "any";
    assert_int_equal(tp_qualify_update(plain, lock, &identity, &update, &error), TP_INVALID);
    says(error.text, "cache is any: a revision has one");
    identity.cache = "i8/token";
    assert_int_equal(tp_qualify_update(q, lock, &identity, &update, &error), TP_OK);
    assert_int_equal(tp_qualify_compare(q, lock, &identity, &error), TP_OK);
    identity.cache = "";
    assert_int_equal(tp_qualify_compare(q, lock, &identity, &error), TP_OK);
    assert_int_equal(tp_qualify_compare(plain, lock, &identity, &error), TP_NOT_LOCKED);
    assert_string_equal(tp_qualification_note(plain, 0), "cache of a/model.json: lock has i8/token, here plain");
    assert_int_equal(tp_qualification_status(plain), TP_CELL_STALE);
    put(lock, model, "plain");
    assert_int_equal(tp_qualify_compare(plain, lock, &identity, &error), TP_OK);
    tp_lock_destroy(lock);
    tp_qualification_destroy(q);
    tp_qualification_destroy(plain);
    tp_model_destroy(model);
}

/* Other bits of a lossy cell: what was lost is told beside what was computed. */
static void a_changed_loss_is_told(void **state) {
    (void)state;
    tp_cell locked = TP_CELL_INIT, now;
    char text[1024];
    locked.status = TP_CELL_QUALIFIED, locked.kernel = "k", locked.output = "a", locked.loss = 0.004;
    now = locked;
    now.output = "b", now.loss = 0.005;
    assert_int_equal(tp_cell_compare(&locked, &now, text, sizeof text), TP_CELL_NUMERICS_CHANGED);
    says(text, "; loss 0.005, lock has 0.004");
    locked.loss = now.loss = 0;
    assert_int_equal(tp_cell_compare(&locked, &now, text, sizeof text), TP_CELL_NUMERICS_CHANGED);
    assert_null(strstr(text, "loss"));
}

/* Policy locked serves from the cache that was qualified, and from no other. */
static void preflight_by_cache(void **state) {
    (void)state;
    static const char plain[] = "b1 h4/2 q1 k900 d32 bf16 causal", i8[] = "b1 h4/2 q1 k900 d32 bf16:i8:i8 causal",
                      blocks[] = "b1 h4/2 q1 k900 d32 bf16:i8:i8 scales=q8_0 causal";
    tp_model *model = support_model(parts), *file = support_model(scheme);
    tp_lock *lock;
    tp_error error = TP_ERROR_INIT;
    tp_context *context = support_context(TP_LOCKED, NULL);
    tp_preflight_options options = TP_PREFLIGHT_OPTIONS_INIT;
    options.declared = "torch=2.4,engine=1";
    assert_int_equal(tp_lock_create(&lock, &error), TP_OK);
    put(lock, model, "i8");
    assert_int_equal(tp_preflight(context, lock, model, options.declared, &error), TP_UNSUPPORTED);
    says(error.text, "not qualified: the lock has it with cache i8/token, and not with plain");
    assert_int_equal(support_asks(context, i8), TP_NOT_LOCKED);
    options.cache = "i8/q8_0";
    assert_int_equal(tp_preflight_with(context, lock, model, &options, &error), TP_UNSUPPORTED);
    options.cache = "fp8";
    assert_int_equal(tp_preflight_with(context, lock, model, &options, &error), TP_INVALID);
    says(error.text, "cache is 'fp8'");
    options.cache = "i8", options.reserved = 1;
    assert_int_equal(tp_preflight_with(context, lock, model, &options, &error), TP_INVALID);
    options.reserved = 0;
    assert_int_equal(tp_preflight_with(context, lock, model, &options, &error), TP_OK);
    assert_int_equal(support_asks(context, i8), TP_OK);
    assert_int_equal(support_asks(context, plain), TP_NOT_LOCKED);
    assert_int_equal(support_asks(context, blocks), TP_NOT_LOCKED);
    struct text metrics = {NULL, 0};
    assert_int_equal(tp_metrics_write(context, text_collect, &metrics), TP_OK);
    says(metrics.bytes, "\ntileproof_lock_stale 0\n");
    assert_null(strstr(metrics.bytes, "\ntileproof_lock_scratch_bytes 0\n"));
    free(metrics.bytes);
    put(lock, model, NULL);
    assert_int_equal(tp_preflight(context, lock, model, options.declared, &error), TP_OK); /* both, one after the other */
    assert_int_equal(support_asks(context, plain), TP_OK);
    assert_int_equal(support_asks(context, i8), TP_OK);
    /* what a file wants is asked for, or not */
    options.cache = NULL;
    assert_int_equal(tp_preflight_with(context, lock, file, &options, &error), TP_INVALID);
    says(error.text, "cache is not said");
    put(lock, file, "e4m3");
    options.cache = "e4m3/tensor";
    assert_int_equal(tp_preflight_with(context, lock, file, &options, &error), TP_OK);
    assert_int_equal(tp_preflight_with(context, lock, model, NULL, &error), TP_UNSUPPORTED); /* nothing is declared: stale */
    tp_context_destroy(context);
    tp_lock_destroy(lock);
    tp_model_destroy(model);
    tp_model_destroy(file);
}

/* What a config says of the cache is known, and followed by nobody who was not asked. */
static void schemes_of_files(void **state) {
    (void)state;
    static const char *const same[] = {"{\"num_bits\": 8, \"type\": \"float\"}",
                                       "{\"num_bits\": 8, \"type\": \"float\", \"strategy\": null, \"dynamic\": null}"};
    static const char *const other[] = {
        "{}", "\"fp8\"", "{\"num_bits\": 8}", "{\"type\": \"float\"}", "{\"num_bits\": 8, \"type\": \"int\"}",
        "{\"num_bits\": 4, \"type\": \"float\"}", "{\"num_bits\": 8.0, \"type\": \"float\"}",
        "{\"num_bits\": 8, \"type\": \"float\", \"strategy\": \"token\"}",
        "{\"num_bits\": 8, \"type\": \"float\", \"dynamic\": true}",
        "{\"num_bits\": 8, \"type\": \"float\", \"symmetric\": false}",
        "{\"num_bits\": 8, \"type\": \"float\", \"group_size\": 32}",
        "{\"num_bits\": 8, \"type\": \"float\", \"block_structure\": [1, 2]}"};
    tp_model *model = support_model(scheme), *none = support_model(SCHEME("null")), *read;
    tp_error error = TP_ERROR_INIT;
    tp_qualification *q;
    char config[1024];
    assert_string_equal(model->cache, "e4m3/tensor");
    assert_string_equal(none->cache, "");
    struct text shown = {NULL, 0}, json = {NULL, 0};
    assert_int_equal(tp_model_write(model, TP_TEXT, text_collect, &shown), TP_OK);
    assert_int_equal(tp_model_write(model, TP_JSON, text_collect, &json), TP_OK);
    says(shown.bytes, "  the file wants keys and values kept as e4m3/tensor");
    says(json.bytes, "\"cache\":\"e4m3/tensor\"");
    free(shown.bytes);
    free(json.bytes);
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        snprintf(config, sizeof config, SCHEME("%s"), same[i]);
        read = support_model(config);
        assert_string_equal(read->cache, "e4m3/tensor");
        tp_model_destroy(read);
    }
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        snprintf(config, sizeof config, SCHEME("%s"), other[i]);
        assert_int_equal(tp_model_parse(config, strlen(config), "m.json", &read, &error), TP_UNSUPPORTED);
        says(error.text, "quantization_config.kv_cache_scheme is set to what is not mapped");
    }
    assert_int_equal(tp_qualify_create(&model, 1, NULL, &q, &error), TP_INVALID);
    assert_string_equal(error.text,
                        "cache is not said, and the file of model.json wants keys and values kept as e4m3/tensor "
                        "(quantization_config.kv_cache_scheme), which loses something: it must be that, or plain");
    /* nor does a cache become plain in silence */
    static tp_cache_layer rows[TP_MODEL_MAX_LAYERS];
    tp_cache_options options = TP_CACHE_OPTIONS_INIT;
    assert_int_equal(tp_cache_from_model(model, TP_PART_TEXT, (tp_dtype)0, rows, TP_MODEL_MAX_LAYERS, &options, &error),
                     TP_INVALID);
    assert_string_equal(error.text,
                        "dtype is not said, and the file of model.json wants keys and values kept as e4m3/tensor "
                        "(quantization_config.kv_cache_scheme), which loses something: name the dtype of a plain cache; "
                        "tp_cache_format_layers makes a quantised one of it");
    assert_int_equal(tp_cache_from_model(model, TP_PART_TEXT, TP_BF16, rows, TP_MODEL_MAX_LAYERS, &options, &error), TP_OK);
    assert_true(rows[0].k_dtype == TP_BF16 && rows[0].k_scales == TP_SCALES_NONE && options.layer_count > 0);
    assert_int_equal(tp_cache_format_layers(model->cache, rows, options.layer_count, &error), TP_OK);
    assert_true(rows[0].k_dtype == TP_E4M3 && rows[0].v_scales == TP_SCALES_TENSOR);
    assert_int_equal(tp_cache_from_model(none, TP_PART_TEXT, (tp_dtype)0, rows, TP_MODEL_MAX_LAYERS, &options, &error), TP_OK);
    q = cells_with(model, "plain", 1);
    assert_null(strchr(tp_qualification_cell(q, 0)->problem, '>'));
    tp_qualification_destroy(q);
    q = cells_with(model, "e4m3", 1);
    says(tp_qualification_cell(q, 0)->problem, " bf16:e4m3:e4m3->bf16 ");
    tp_qualification_destroy(q);
    q = cells_with(none, NULL, 1);
    tp_qualification_destroy(q);
    tp_model_destroy(model);
    tp_model_destroy(none);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_become_names),    cmocka_unit_test(calls_in_words),
        cmocka_unit_test(rows_of_layers),        cmocka_unit_test(cells_read_the_cache),
        cmocka_unit_test(cells_run),             cmocka_unit_test(head_dims_that_do_not_go),
        cmocka_unit_test(engines_are_not_asked), cmocka_unit_test(locks_keep_caches_apart),
        cmocka_unit_test(compared_by_cache),     cmocka_unit_test(a_changed_loss_is_told),
        cmocka_unit_test(preflight_by_cache),    cmocka_unit_test(schemes_of_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
