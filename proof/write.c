/* SPDX-License-Identifier: Apache-2.0 */
/* A model as a table for people and as JSON for programs. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"

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

static void add_call(json_t *object, const tp_layer_group *group, int decode) {
    char text[TEXT_SIZE];
    call_text(group, decode, text);
    json_t *call = *text ? json_pack("{s:s,s:b}", "problem", text, "core_reads", core_reads(text))
                         : json_null();
    json_object_set_new(object, decode ? "decode" : "prefill", call);
}

static void add_mask(json_t *object, const tp_layer_group *group) {
    char formula[96];
    tp_layer_group_formula(group, formula, sizeof formula);
    json_t *mask = json_pack("{s:s}", "formula", formula);
    if (group->all_of & TP_TERM_WINDOW)
        json_object_set_new(
            mask, "window",
            json_pack("[I,I]", (json_int_t)group->window_left, (json_int_t)group->window_right));
    if (group->chunk) json_object_set_new(mask, "chunk", json_integer(group->chunk));
    if (group->span) json_object_set_new(mask, "span", json_integer(group->span));
    if (group->prefix) json_object_set_new(mask, "prefix", json_integer(group->prefix));
    if (group->first) json_object_set_new(mask, "first", json_integer(group->first));
    json_object_set_new(object, "mask", mask);
}

static void add_rope(json_t *object, const tp_layer_group *group) {
    json_t *rope = json_pack("{s:s}", "kind", tp_rope_name((tp_rope)group->rope));
    if (group->rope_dims) json_object_set_new(rope, "dims", json_integer(group->rope_dims));
    if (group->rope_theta > 0) json_object_set_new(rope, "theta", json_real(group->rope_theta));
    if (group->rope_factor > 0) json_object_set_new(rope, "factor", json_real(group->rope_factor));
    if (group->mrope_section[0]) {
        json_object_set_new(rope, "mrope_section",
                            json_pack("[i,i,i]", group->mrope_section[0], group->mrope_section[1],
                                      group->mrope_section[2]));
        json_object_set_new(rope, "mrope_interleaved", json_boolean(group->mrope_interleaved));
    }
    json_object_set_new(object, "rope", rope);
}

static void add_scores(json_t *object, const tp_layer_group *group) {
    json_object_set_new(object, "scale", json_real(group->scale));
    json_object_set_new(object, "scale_source", json_string(group->scale_source));
    if (group->softcap > 0) json_object_set_new(object, "softcap", json_real(group->softcap));
    json_object_set_new(object, "sinks", json_boolean(group->sinks));
    json_object_set_new(object, "alibi", json_boolean(group->alibi));
    if (group->query_scale_beta > 0)
        json_object_set_new(object, "query_scale",
                            json_pack("{s:f,s:I,s:I}", "beta", group->query_scale_beta, "period",
                                      (json_int_t)group->query_scale_period, "offset",
                                      (json_int_t)group->query_scale_offset));
}

static void add_shape(json_t *object, const tp_layer_group *group) {
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
                  {"kv_max", offsetof(tp_layer_group, kv_max)}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        int64_t value = *(const int64_t *)((const char *)group + fields[i].offset);
        if (value) json_object_set_new(object, fields[i].name, json_integer(value));
    }
    json_object_set_new(object, "dtype",
                        group->dtype ? json_string(tp_dtype_name((tp_dtype)group->dtype))
                                     : json_null());
}

static json_t *group_json(const tp_layer_group *group) {
    json_t *object = json_object();
    char *layers = layers_text(group);
    json_object_set_new(object, "part", json_string(tp_part_name((tp_part)group->part)));
    json_object_set_new(object, "layers", json_string(layers ? layers : ""));
    json_object_set_new(object, "layer_count", json_integer(group->layer_count));
    free(layers);
    if (group->out_of_scope) {
        json_object_set_new(object, "out_of_scope", json_string(group->out_of_scope));
        return object;
    }
    add_shape(object, group);
    add_mask(object, group);
    add_scores(object, group);
    add_rope(object, group);
    add_call(object, group, 0);
    add_call(object, group, 1);
    return object;
}

static tp_status write_json(const tp_model *model, tp_write write, void *cookie) {
    json_t *groups = json_array();
    for (int i = 0; i < model->group_count; i++)
        json_array_append_new(groups, group_json(model->groups[i]));
    json_t *object =
        json_pack("{s:s,s:s,s:i,s:s,s:o}", "name", model->name, "model_type", model->model_type,
                  "parser", TP_MODEL_PARSER_VERSION, "ignored", model->ignored, "groups", groups);
    char *text = object ? json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(object);
    if (!text) return TP_NO_MEMORY;
    int stopped = write(cookie, text, strlen(text));
    free(text);
    return stopped ? TP_INVALID : TP_OK;
}

static void put_extras(const tp_layer_group *group, char *text, size_t size) {
    char rope[96] = "";
    size_t used = 0;
    used += (size_t)snprintf(text, size, "%.6g", group->scale);
    if (group->query_scale_beta > 0) used += (size_t)snprintf(text + used, size - used, " q-scale");
    if (group->softcap > 0)
        used += (size_t)snprintf(text + used, size - used, " softcap %g", group->softcap);
    if (group->sinks) used += (size_t)snprintf(text + used, size - used, " sinks");
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

typedef struct line_writer {
    tp_write write;
    void *cookie;
    int stopped;
} line_writer;

static void put(line_writer *w, const char *text) {
    if (!w->stopped) w->stopped = w->write(w->cookie, text, strlen(text));
}

static void write_group(line_writer *w, const tp_layer_group *group) {
    char line[1024], formula[96], extras[256] = "", heads[48], dims[48], call[TEXT_SIZE];
    char *layers = layers_text(group);
    if (group->out_of_scope) {
        snprintf(line, sizeof line, "  %-6s layers %-12.200s out of scope: %s\n",
                 tp_part_name((tp_part)group->part), layers ? layers : "", group->out_of_scope);
        free(layers);
        put(w, line);
        return;
    }
    tp_layer_group_formula(group, formula, sizeof formula);
    put_extras(group, extras, sizeof extras);
    snprintf(heads, sizeof heads, "%lld/%lld", (long long)group->q_heads,
             (long long)group->kv_heads);
    snprintf(dims, sizeof dims, "%lld/%lld", (long long)group->head_dim_qk,
             (long long)group->head_dim_v);
    snprintf(line, sizeof line, "  %-6s layers %-12.200s h%-8s d%-8s %-5s %s, scale %s\n",
             tp_part_name((tp_part)group->part), layers ? layers : "", heads, dims,
             group->dtype ? tp_dtype_name((tp_dtype)group->dtype) : "-", formula, extras);
    free(layers);
    put(w, line);
    for (int decode = 0; decode < 2; decode++) {
        if (!*call_text(group, decode, call)) continue;
        put(w, "           ");
        put(w, call);
        put(w, core_reads(call) ? "\n" : "   (words this core does not read)\n");
    }
}

static tp_status write_text(const tp_model *model, tp_write write, void *cookie) {
    line_writer w = {write, cookie, 0};
    char line[64];
    put(&w, model->name);
    put(&w, ": ");
    put(&w, model->model_type);
    snprintf(line, sizeof line, ", %d layer groups\n", (int)model->group_count);
    put(&w, line);
    if (*model->ignored) {
        put(&w, "  ignored as the file asks: ");
        put(&w, model->ignored);
        put(&w, "\n");
    }
    for (int i = 0; i < model->group_count; i++) write_group(&w, model->groups[i]);
    return w.stopped ? TP_INVALID : TP_OK;
}

tp_status tp_model_write(const tp_model *model, tp_format format, tp_write write, void *cookie) {
    if (!model || !write || model->struct_size < sizeof *model) return TP_INVALID;
    if (format == TP_JSON) return write_json(model, write, cookie);
    return format == TP_TEXT ? write_text(model, write, cookie) : TP_INVALID;
}
