/* SPDX-License-Identifier: Apache-2.0 */
/* A model as a table for people and as JSON for programs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control.h"
#include "json.h"

enum { TEXT_SIZE = 512 };

/* Layers of a scattered group need up to five bytes each. */
static char *layers_text(const tp_layer_group *group) {
    size_t size = 8 * (size_t)group->layer_count + 8;
    char *text = malloc(size);
    if (text && tp_layer_group_layers(group, text, size) != TP_OK) text[0] = 0;
    return text;
}

static const char *call_text(const tp_layer_group *group, int decode, char text[TEXT_SIZE]) {
    int64_t q_len, kv_len;
    tp_layer_group_lengths(group, decode, &q_len, &kv_len);
    if (!q_len || tp_layer_group_problem(group, 1, q_len, kv_len, text, TEXT_SIZE) != TP_OK)
        text[0] = 0;
    return text;
}

/* Whether this build's core reads the text as it stands. */
static int core_reads(const char *text) {
    tp_problem problem;
    return tp_problem_parse(text, &problem, NULL, NULL) == TP_OK;
}

/* Below: nonzero when memory ran out. A value that could not be made is NULL, and setting that fails. */
static int add_call(json_t *object, const tp_layer_group *group, int decode) {
    char text[TEXT_SIZE];
    call_text(group, decode, text);
    json_t *call = *text ? json_pack("{s:s,s:b}", "problem", text, "core_reads", core_reads(text))
                         : json_null();
    return json_object_set_new(object, decode ? "decode" : "prefill", call);
}

/* A number that is left out when it is 0. */
static int add_count(json_t *object, const char *name, int64_t value) {
    return value && json_object_set_new(object, name, json_integer(value));
}

static int add_mask(json_t *object, const tp_layer_group *group) {
    char formula[96];
    tp_layer_group_formula(group, formula, sizeof formula);
    json_t *mask = json_pack("{s:s}", "formula", formula);
    int failed = group->all_of & TP_TERM_WINDOW &&
                 json_object_set_new(mask, "window",
                                     json_pack("[I,I]", (json_int_t)group->window_left,
                                               (json_int_t)group->window_right));
    failed |= add_count(mask, "chunk", group->chunk);
    failed |= add_count(mask, "span", group->span);
    failed |= add_count(mask, "prefix", group->prefix);
    failed |= add_count(mask, "first", group->first);
    failed |= add_count(mask, "sparse", group->sparse);
    return failed | json_object_set_new(object, "mask", mask);
}

/* A number above 0, or nothing. */
static int add_real(json_t *object, const char *name, double value) {
    return value > 0 && json_object_set_new(object, name, json_real(value));
}

static int add_rope(json_t *object, const tp_layer_group *group) {
    json_t *rope = json_pack("{s:s}", "kind", tp_rope_name((tp_rope)group->rope));
    int failed = add_count(rope, "dims", group->rope_dims);
    failed |= add_real(rope, "theta", group->rope_theta);
    failed |= add_real(rope, "factor", group->rope_factor);
    if (group->mrope_section[0]) {
        failed |= json_object_set_new(rope, "mrope_section",
                                      json_pack("[i,i,i]", group->mrope_section[0], group->mrope_section[1],
                                                group->mrope_section[2]));
        failed |= json_object_set_new(rope, "mrope_interleaved", json_boolean(group->mrope_interleaved));
    }
    return failed | json_object_set_new(object, "rope", rope);
}

static int add_scores(json_t *object, const tp_layer_group *group) {
    int failed = json_object_set_new(object, "scale", json_real(group->scale));
    failed |= json_object_set_new(object, "scale_source", json_string(group->scale_source));
    failed |= add_real(object, "softcap", group->softcap);
    failed |= json_object_set_new(object, "sinks", json_boolean(group->sinks));
    failed |= json_object_set_new(object, "alibi", json_boolean(group->alibi));
    if (group->query_scale_beta > 0)
        failed |= json_object_set_new(object, "query_scale",
                                      json_pack("{s:f,s:I,s:I}", "beta", group->query_scale_beta, "period",
                                                (json_int_t)group->query_scale_period, "offset",
                                                (json_int_t)group->query_scale_offset));
    return failed;
}

static int add_shape(json_t *object, const tp_layer_group *group) {
    static const struct {
        const char *name;
        size_t offset;
    } fields[] = {{"q_heads", offsetof(tp_layer_group, q_heads)},
                  {"kv_heads", offsetof(tp_layer_group, kv_heads)},
                  {"head_dim_qk", offsetof(tp_layer_group, head_dim_qk)},
                  {"head_dim_v", offsetof(tp_layer_group, head_dim_v)},
                  {"decode_kv_heads", offsetof(tp_layer_group, decode_kv_heads)},
                  {"decode_dim_qk", offsetof(tp_layer_group, decode_dim_qk)},
                  {"decode_dim_v", offsetof(tp_layer_group, decode_dim_v)},
                  {"q_max", offsetof(tp_layer_group, q_max)},
                  {"kv_max", offsetof(tp_layer_group, kv_max)},
                  {"kv_shared", offsetof(tp_layer_group, kv_shared)}};
    int failed = 0;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        failed |= add_count(object, fields[i].name,
                            *(const int64_t *)(const void *)((const char *)group + fields[i].offset));
    return failed | json_object_set_new(object, "dtype",
                                        group->dtype ? json_string(tp_dtype_name((tp_dtype)group->dtype))
                                                     : json_null());
}

/* NULL when memory ran out. */
static json_t *group_json(const tp_layer_group *group) {
    json_t *object = json_object();
    char *layers = layers_text(group);
    int failed = !layers || json_object_set_new(object, "part", json_string(tp_part_name((tp_part)group->part)));
    failed = failed || json_object_set_new(object, "layers", json_string(layers));
    failed = failed || json_object_set_new(object, "layer_count", json_integer(group->layer_count));
    free(layers);
    if (group->out_of_scope)
        failed = failed || json_object_set_new(object, "out_of_scope", json_string(group->out_of_scope));
    else
        failed = failed || add_shape(object, group) || add_mask(object, group) || add_scores(object, group) ||
                 add_rope(object, group) || add_call(object, group, 0) || add_call(object, group, 1);
    if (!failed) return object;
    json_decref(object);
    return NULL;
}

static tp_status write_json(const tp_model *model, tp_write write, void *cookie) {
    json_t *groups = json_array(),
           *object = json_pack("{s:s,s:s,s:s,s:i,s:s}", "name", model->name, "model_type", model->model_type, "assumed",
                               model->assumed, "parser", TP_MODEL_PARSER_VERSION, "ignored", model->ignored);
    int failed = 0;
    for (int i = 0; i < model->group_count && !failed; i++)
        failed = json_array_append_new(groups, group_json(model->groups[i]));
    if (*model->cache) failed |= json_object_set_new(object, "cache", json_string(model->cache));
    failed |= json_object_set_new(object, "groups", groups);
    tp__page page = {.failed = failed};
    tp__page_json(&page, object, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(object);
    return tp__page_give(&page, write, cookie);
}

static void put_extras(const tp_layer_group *group, char *text, size_t size) {
    char rope[96] = "";
    size_t used = 0;
    used += (size_t)snprintf(text, size, "%.6g", group->scale);
    if (group->query_scale_beta > 0) used += (size_t)snprintf(text + used, size - used, " q-scale");
    if (group->softcap > 0)
        used += (size_t)snprintf(text + used, size - used, " softcap %g", group->softcap);
    if (group->sinks) used += (size_t)snprintf(text + used, size - used, " sinks");
    if (group->sparse) used += (size_t)snprintf(text + used, size - used, " sparse=%lld", (long long)group->sparse);
    if (group->alibi) used += (size_t)snprintf(text + used, size - used, " alibi");
    if (group->rope)
        snprintf(rope, sizeof rope, ", rope %s %lld", tp_rope_name((tp_rope)group->rope),
                 (long long)group->rope_dims);
    used += (size_t)snprintf(text + used, size - used, "%s", rope);
    if (group->rope_theta > 0)
        used += (size_t)snprintf(text + used, size - used, " theta %g", group->rope_theta);
    if (group->mrope_section[0])
        snprintf(text + used, size - used, " mrope %d,%d,%d%s", (int)group->mrope_section[0],
                 (int)group->mrope_section[1], (int)group->mrope_section[2],
                 group->mrope_interleaved ? " interleaved" : "");
}

static void write_group(tp__page *w, const tp_layer_group *group) {
    char line[1024], formula[96], extras[256] = "", heads[48], dims[48], call[TEXT_SIZE];
    char *layers = layers_text(group);
    if (!layers) {
        w->failed = 1;
        return;
    }
    if (group->out_of_scope) {
        snprintf(line, sizeof line, "  %-6s layers %-12.200s out of scope: %s\n",
                 tp_part_name((tp_part)group->part), layers, group->out_of_scope);
        free(layers);
        tp__page_put(w, line);
        return;
    }
    tp_layer_group_formula(group, formula, sizeof formula);
    put_extras(group, extras, sizeof extras);
    snprintf(heads, sizeof heads, "%lld/%lld", (long long)group->q_heads,
             (long long)group->kv_heads);
    snprintf(dims, sizeof dims, "%lld/%lld", (long long)group->head_dim_qk,
             (long long)group->head_dim_v);
    snprintf(line, sizeof line, "  %-6s layers %-12.200s h%-8s d%-8s %-5s %s, scale %s\n",
             tp_part_name((tp_part)group->part), layers, heads, dims,
             group->dtype ? tp_dtype_name((tp_dtype)group->dtype) : "-", formula, extras);
    free(layers);
    tp__page_put(w, line);
    for (int decode = 0; decode < 2; decode++) {
        if (!*call_text(group, decode, call)) continue;
        tp__page_put(w, "           ");
        tp__page_put(w, call);
        tp__page_put(w, core_reads(call) ? "\n" : "   (words this core does not read)\n");
    }
}

static tp_status write_text(const tp_model *model, tp_write write, void *cookie) {
    tp__page w = {0};
    char line[64];
    tp__page_put(&w, model->name);
    tp__page_put(&w, ": ");
    tp__page_put(&w, model->model_type);
    snprintf(line, sizeof line, ", %d layer groups\n", (int)model->group_count);
    tp__page_put(&w, line);
    if (*model->assumed) {
        tp__page_put(&w, "  model_type is not known: read as ");
        tp__page_put(&w, model->assumed);
        tp__page_put(&w, ", as asked\n");
    }
    if (*model->cache) {
        tp__page_put(&w, "  the file wants keys and values kept as ");
        tp__page_put(&w, model->cache);
        tp__page_put(&w, "; the calls below are with plain ones\n");
    }
    if (*model->ignored) {
        tp__page_put(&w, "  ignored as the file asks: ");
        tp__page_put(&w, model->ignored);
        tp__page_put(&w, "\n");
    }
    for (int i = 0; i < model->group_count; i++) write_group(&w, model->groups[i]);
    return tp__page_give(&w, write, cookie);
}

tp_status tp_model_write(const tp_model *model, tp_format format, tp_write write, void *cookie) {
    TP__IN_DEFAULT_FENV;
    if (!model || !write || model->struct_size < sizeof *model) return TP_INVALID;
    if (format == TP_JSON) return write_json(model, write, cookie);
    return format == TP_TEXT ? write_text(model, write, cookie) : TP_INVALID;
}
