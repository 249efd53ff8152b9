/* SPDX-License-Identifier: Apache-2.0 */
#include "declared.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "words.h"

static tp_status read_name(tp__scope *scope, const char *key, int count,
                           const char *(*name_of)(int number), int32_t *number) {
    const char *name;
    TP_TRY(tp__scope_string(scope, key, &name));
    if (!name) return TP_OK;
    for (int i = 0; i < count; i++)
        if (!strcmp(name, name_of(i))) {
            *number = i;
            return TP_OK;
        }
    return tp__scope_fail(scope, TP_INVALID, key, "is \"%.40s\": it is not one of the known names",
                          name);
}

static const char *part_name(int number) {
    return tp_part_name((tp_part)number);
}

static const char *rope_name(int number) {
    return tp_rope_name((tp_rope)number);
}

static const char *stranger_name(int number) {
    static const char *const names[] = {"mamba", "linear attention", "rwkv", "convolution",
                                        "other"};
    return names[number];
}

static tp_status bad_word(tp__scope *scope, const char *word, const char *why) {
    return tp__scope_fail(scope, TP_INVALID, "problem", "has the word '%.60s': %s", word, why);
}

/* What the core's parser found, into the group. */
static tp_status take_problem(tp__scope *scope, const tp_problem *problem, tp_layer_group *group) {
    if (problem->batch != 1 || problem->align != TP_BOTTOM_RIGHT)
        return tp__scope_fail(scope, TP_INVALID, "problem",
                              "must not give b, or top-left: those belong to a call");
    group->q_heads = problem->q_heads;
    group->kv_heads = problem->kv_heads;
    group->head_dim_qk = problem->head_dim_qk;
    group->head_dim_v = problem->head_dim_v;
    group->dtype = problem->q_dtype;
    if (problem->q_layout == TP_PACKED) group->all_of |= TP_TERM_SEGMENT;
    for (int i = 0; i < problem->mask_nodes; i++) {
        const tp_mask_node *node = &problem->mask[i];
        if (node->kind == TP_MASK_CAUSAL) group->all_of |= TP_TERM_CAUSAL;
        if (node->kind != TP_MASK_WINDOW) continue;
        if (group->all_of & TP_TERM_WINDOW)
            return tp__scope_fail(scope, TP_INVALID, "problem",
                                  "has two windows: at most one is kept");
        group->all_of |= TP_TERM_WINDOW;
        group->window_left = node->a;
        group->window_right = node->b;
    }
    group->scale =
        problem->scale_set ? (double)problem->scale : 1 / sqrt((double)problem->head_dim_qk);
    group->scale_source = problem->scale_set ? "scale" : "1/sqrt(d)";
    return TP_OK;
}

/* The words of words.c are taken out; the core reads the rest. Lengths belong to a call and are
 * added here. */
static tp_status read_problem(tp__scope *scope, const char *text, tp_layer_group *group) {
    char rest[512] = "", copy[512], *state, *word;
    tp_problem problem;
    tp_error error = TP_ERROR_INIT;
    if (strlen(text) > sizeof copy - 16)
        return tp__scope_fail(scope, TP_INVALID, "problem",
                              "has %zu characters: at most %zu are read", strlen(text),
                              sizeof copy - 16);
    strcpy(copy, text);
    for (word = strtok_r(copy, " \t", &state); word; word = strtok_r(NULL, " \t", &state)) {
        int taken = tp__words_read(word, group);
        if (taken < 0) return bad_word(scope, word, "its value is bad, or it stands twice");
        if (strspn(word, "0123456789") == 0 && (word[0] == 'q' || word[0] == 'k') &&
            strspn(word + 1, "0123456789") == strlen(word) - 1)
            return bad_word(scope, word, "lengths belong to a call, not to a model");
        if (taken) continue;
        strcat(rest, word);
        strcat(rest, " ");
    }
    strcat(rest, "q1 k1");
    if (tp_problem_parse(rest, &problem, NULL, &error) != TP_OK)
        return tp__scope_fail(scope, TP_INVALID, "problem", "is not understood: %.200s",
                              error.text);
    return take_problem(scope, &problem, group);
}

static tp_status bad_layers(tp__scope *scope, const char *text) {
    return tp__scope_fail(scope, TP_INVALID, "layers",
                          "is \"%.60s\": it must be ranges such as 0-40/2 or 3,7,11, ascending, of "
                          "layers in 0..%d",
                          text, TP_MODEL_MAX_LAYERS - 1);
}

static int take_layer(const char **at, long *value) {
    if (**at < '0' || **at > '9') return 0;
    char *end;
    *value = strtol(*at, &end, 10);
    *at = end;
    return *value < TP_MODEL_MAX_LAYERS;
}

/* Adds the group's layers; a layer belongs to one group of a part. */
static tp_status read_layers(tp__scope *scope, const char *text, const tp_layer_group *group,
                             uint8_t *taken, tp__builder *builder) {
    long last = -1;
    for (const char *at = text;; at++) {
        long first, end, step = 1;
        if (!take_layer(&at, &first) || first <= last) return bad_layers(scope, text);
        end = first;
        if (*at == '-' && (at++, !take_layer(&at, &end) || end < first))
            return bad_layers(scope, text);
        if (*at == '/' && (at++, !take_layer(&at, &step) || step < 1))
            return bad_layers(scope, text);
        for (long i = first; i <= end; i += step) {
            if (taken[i]++)
                return tp__scope_fail(scope, TP_INVALID, "layers",
                                      "gives layer %ld to a second group of its part", i);
            TP_TRY(tp__builder_add(builder, group, (int)i));
            last = i;
        }
        if (!*at) return TP_OK;
        if (*at != ',') return bad_layers(scope, text);
    }
}

static tp_status read_group(tp__scope *scope, uint8_t taken[4][TP_MODEL_MAX_LAYERS],
                            tp__builder *builder) {
    tp_layer_group group;
    const char *layers, *problem, *other;
    memset(&group, 0, sizeof group);
    TP_TRY(read_name(scope, "part", 4, part_name, &group.part));
    TP_TRY(tp__scope_string(scope, "layers", &layers));
    TP_TRY(tp__scope_string(scope, "problem", &problem));
    TP_TRY(tp__scope_string(scope, "out_of_scope", &other));
    if (!layers) return tp__scope_fail(scope, TP_INVALID, "layers", "is missing: it must be given");
    if (!problem == !other)
        return tp__scope_fail(scope, TP_INVALID, "problem",
                              "or out_of_scope must be given, one and not both");
    if (other) {
        int32_t stranger = 0;
        TP_TRY(read_name(scope, "out_of_scope", 5, stranger_name, &stranger));
        group.out_of_scope = stranger_name(stranger);
        return read_layers(scope, layers, &group, taken[group.part], builder);
    }
    TP_TRY(read_name(scope, "rope", TP_ROPE_PROPORTIONAL + 1, rope_name, &group.rope));
    TP_TRY(tp__scope_count(scope, "max_positions", 1, (int64_t)1 << 40, &group.q_max));
    group.kv_max = group.q_max;
    TP_TRY(read_problem(scope, problem, &group));
    if (group.rope) group.rope_dims = group.head_dim_qk;
    return read_layers(scope, layers, &group, taken[group.part], builder);
}

tp_status tp__declared_read(tp__scope *top, const char *type, void *context) {
    tp__builder *builder = context;
    int64_t version = 0;
    json_t *list, *entry;
    size_t i;
    (void)type;
    TP_TRY(tp__scope_count(top, "tileproof_model", 1, 1, &version));
    TP_TRY(tp__scope_array(top, "groups", &list));
    if (!json_array_size(list))
        return tp__scope_fail(top, TP_INVALID, "groups",
                              "is missing or empty: one group is the least");
    uint8_t(*taken)[TP_MODEL_MAX_LAYERS] = calloc(4, sizeof *taken);
    tp_status status =
        taken ? TP_OK
              : tp__proof_fail(top->source->error, TP_NO_MEMORY, "out of memory for layer groups");
    json_array_foreach(list, i, entry) {
        tp__scope scope;
        if (status != TP_OK) break;
        if (!json_is_object(entry)) {
            status = tp__scope_fail(top, TP_INVALID, "groups",
                                    "must hold objects, as entry %zu is not", i);
            break;
        }
        char path[32];
        snprintf(path, sizeof path, "groups[%zu]", i);
        status = tp__scope_open(&scope, top->source, entry, path);
        if (status != TP_OK) break;
        status = read_group(&scope, taken, builder);
        if (status == TP_OK) status = tp__scope_finish(&scope);
        tp__scope_close(&scope);
    }
    free(taken);
    return status;
}
