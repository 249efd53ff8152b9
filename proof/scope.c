/* SPDX-License-Identifier: Apache-2.0 */
#include "scope.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "scan.h"

/* Keys of any config that cannot change attention. A name that ends in '*' is a prefix. */
static const char *const harmless[] = {
#define X(name) name,
#include "harmless.inc"
#undef X
};

/* Keys that change attention when set; only these values are understood, in every scope that did
 * not ask. */
static const struct {
    const char *key;
    enum { NULL_VALUE, FALSE_VALUE, TRUE_VALUE, ONE_VALUE, EMPTY_VALUE, TEXT_VALUE } rule;
    const char *text;
} guards[] = {
    {"is_encoder_decoder", FALSE_VALUE, "false: no such model_type with it is known"},
    {"add_cross_attention", FALSE_VALUE, "false: cross attention of this model_type is not mapped"},
    {"scale_attn_weights", TRUE_VALUE, "true: without the scale it is not mapped"},
    {"full_attn_mod", ONE_VALUE, "1: other patterns of layers are not mapped"},
    {"interpolate_factor", ONE_VALUE, "1: scaled positions of this kind are not mapped"},
    {"sliding_window", NULL_VALUE, "null: windows of this model_type are not mapped"},
    {"pruned_heads", EMPTY_VALUE, "empty: pruned heads are not mapped"},
    {"position_embedding_type", TEXT_VALUE, "absolute"},
};

tp_status tp__scope_open(tp__scope *scope, tp__source *source, json_t *object, const char *path) {
    memset(scope, 0, sizeof *scope);
    scope->source = source;
    scope->object = object;
    scope->complete = 1;
    snprintf(scope->path, sizeof scope->path, "%s", path);
    scope->seen = json_object();
    return scope->seen ? TP_OK
                       : tp__proof_fail(source->error, TP_NO_MEMORY, "out of memory for a config");
}

void tp__scope_close(tp__scope *scope) {
    json_decref(scope->seen);
    scope->seen = NULL;
}

/* The line of the key or, when the key is not there, of what should hold it. Entries of lists have
   no line of their own: "groups[2].layers" is looked up as "groups". */
static int line_of(const tp__source *source, const char *path) {
    char shorter[256];
    snprintf(shorter, sizeof shorter, "%s", path);
    shorter[strcspn(shorter, "[")] = 0;
    for (;;) {
        int line = tp__scan_line(source->text, source->size, shorter);
        char *dot = strrchr(shorter, '.');
        if (line || !dot) return line ? line : 1;
        *dot = 0;
    }
}

tp_status tp__scope_fail(const tp__scope *scope, tp_status status, const char *key,
                         const char *format, ...) {
    char path[256], text[384];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    snprintf(path, sizeof path, "%s%s%.100s", scope->path, *scope->path ? "." : "", key);
    return tp__proof_fail(scope->source->error, status, "%s:%d: %s %s", scope->source->name,
                          line_of(scope->source, path), path, text);
}

/* A value as an error shows it: short, whatever it holds. */
static const char *shown(const json_t *value, char text[64]) {
    tp__page whole = {0};
    tp__page_json(&whole, value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));
    snprintf(text, 64, whole.used > 40 ? "%.40s..." : "%s", whole.failed ? "?" : tp__page_text(&whole));
    tp__page_close(&whole);
    return text;
}

static tp_status refuse(const tp__scope *scope, const char *key, const json_t *value,
                        const char *rule) {
    char text[64];
    return tp__scope_fail(scope, TP_INVALID, key, "is %s: it must be %s", shown(value, text), rule);
}

json_t *tp__scope_find(tp__scope *scope, const char *names, const char **used) {
    char *name = scope->used;
    json_t *found = NULL;
    for (const char *at = names; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL) {
        char one[64];
        snprintf(one, sizeof one, "%.*s", (int)strcspn(at, "|"), at);
        json_t *value = json_object_get(scope->object, one);
        if (at == names || (value && !found)) strcpy(name, one);
        if (!value) continue;
        scope->source->no_memory |= json_object_set_new(scope->seen, one, json_true()) != 0;
        if (!found) found = value;
    }
    *used = name;
    return found;
}

/* Aliases name one thing: two that differ are a contradiction. */
static tp_status agree(tp__scope *scope, const char *names, json_t *found, const char *used) {
    for (const char *at = names; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL) {
        char one[64], text[64], other[64];
        snprintf(one, sizeof one, "%.*s", (int)strcspn(at, "|"), at);
        json_t *value = json_object_get(scope->object, one);
        if (!value || json_equal(value, found)) continue;
        if (json_is_number(value) && json_is_number(found) &&
            json_number_value(value) == json_number_value(found))
            continue;
        return tp__scope_fail(scope, TP_INVALID, one, "is %s and %s is %s: they must agree",
                              shown(value, text), used, shown(found, other));
    }
    return TP_OK;
}

static tp_status look_up(tp__scope *scope, const char *names, json_t **value, const char **used,
                         tp__state *state) {
    *value = tp__scope_find(scope, names, used);
    *state = !*value ? TP__ABSENT : json_is_null(*value) ? TP__NULL : TP__VALUE;
    return *value ? agree(scope, names, *value, *used) : TP_OK;
}

tp_status tp__scope_int(tp__scope *scope, const char *names, int64_t min, int64_t max,
                        int64_t *result, tp__state *state) {
    const char *used;
    json_t *value;
    TP_TRY(look_up(scope, names, &value, &used, state));
    if (*state != TP__VALUE) return TP_OK;
    json_int_t number = json_integer_value(value);
    /* 8.0 is a whole number; 1e308 is none that fits */
    if (json_is_real(value) && fabs(json_real_value(value)) < 0x1p53)
        number = (json_int_t)json_real_value(value);
    if (!json_is_number(value) || json_number_value(value) != (double)number || number < min ||
        number > max) {
        char rule[96];
        snprintf(rule, sizeof rule, "a whole number in %lld..%lld", (long long)min,
                 (long long)max);
        return refuse(scope, used, value, rule);
    }
    *result = number;
    return TP_OK;
}

tp_status tp__scope_count(tp__scope *scope, const char *names, int64_t min, int64_t max,
                          int64_t *value) {
    tp__state state;
    const char *used;
    TP_TRY(tp__scope_int(scope, names, min, max, value, &state));
    if (state != TP__NULL) return TP_OK;
    tp__scope_find(scope, names, &used);
    return tp__scope_fail(scope, TP_INVALID, used,
                          "is null: it must be a whole number, or be left out");
}

tp_status tp__scope_real(tp__scope *scope, const char *names, double min, double max,
                         int null_is_0, double *result) {
    const char *used;
    json_t *value;
    tp__state state;
    TP_TRY(look_up(scope, names, &value, &used, &state));
    if (state == TP__ABSENT) return TP_OK;
    if (state == TP__NULL && null_is_0) {
        *result = 0;
        return TP_OK;
    }
    double number = json_number_value(value);
    if (!json_is_number(value) || !isfinite(number) || number < min || number > max) {
        char rule[96];
        snprintf(rule, sizeof rule, "a number in %g..%g%s", min, max,
                 null_is_0 ? ", or null" : "");
        return refuse(scope, used, value, rule);
    }
    *result = number;
    return TP_OK;
}

tp_status tp__scope_bool(tp__scope *scope, const char *name, int *result) {
    const char *used;
    json_t *value = tp__scope_find(scope, name, &used);
    if (!value || json_is_null(value)) return TP_OK;
    if (!json_is_boolean(value)) return refuse(scope, name, value, "true, false or null");
    *result = json_is_true(value);
    return TP_OK;
}

tp_status tp__scope_string(tp__scope *scope, const char *names, const char **result) {
    const char *used;
    json_t *value;
    tp__state state;
    TP_TRY(look_up(scope, names, &value, &used, &state));
    *result = NULL;
    if (state != TP__VALUE) return TP_OK;
    if (!json_is_string(value)) return refuse(scope, used, value, "a string");
    *result = json_string_value(value);
    return TP_OK;
}

static tp_status of_kind(tp__scope *scope, const char *name, json_type type, const char *rule,
                         json_t **result) {
    const char *used;
    json_t *value = tp__scope_find(scope, name, &used);
    *result = NULL;
    if (!value || json_is_null(value)) return TP_OK;
    if (json_typeof(value) != type) return refuse(scope, name, value, rule);
    *result = value;
    return TP_OK;
}

tp_status tp__scope_object(tp__scope *scope, const char *name, json_t **value) {
    return of_kind(scope, name, JSON_OBJECT, "an object", value);
}

tp_status tp__scope_array(tp__scope *scope, const char *name, json_t **value) {
    return of_kind(scope, name, JSON_ARRAY, "a list", value);
}

static int is_harmless(const char *key) {
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++) {
        size_t size = strlen(harmless[i]);
        if (harmless[i][size - 1] == '*' ? !strncmp(key, harmless[i], size - 1)
                                         : !strcmp(key, harmless[i]))
            return 1;
    }
    return 0;
}

static int guard_holds(size_t i, const json_t *value) {
    if (json_is_null(value)) return 1;
    switch (guards[i].rule) {
    case NULL_VALUE: return 0;
    case FALSE_VALUE: return json_is_false(value);
    case TRUE_VALUE: return json_is_true(value);
    case ONE_VALUE: return json_is_integer(value) && json_integer_value(value) == 1;
    case EMPTY_VALUE: return json_object_size(value) == 0 && json_array_size(value) == 0;
    case TEXT_VALUE:
        return json_is_string(value) && !strcmp(json_string_value(value), guards[i].text);
    }
    return 0;
}

static tp_status judge(tp__scope *scope, const char *key, json_t *value) {
    char text[64];
    for (size_t i = 0; i < sizeof guards / sizeof *guards; i++) {
        if (strcmp(key, guards[i].key)) continue;
        if (guard_holds(i, value)) return TP_OK;
        return tp__scope_fail(scope, TP_UNSUPPORTED, key, "is %s: it must be %s",
                              shown(value, text), guards[i].text);
    }
    if (is_harmless(key) || !scope->complete) return TP_OK;
    if (json_object_get(scope->source->ignore, key)) {
        scope->source->no_memory |= json_object_set_new(scope->source->ignored, key, json_true()) != 0;
        return TP_OK;
    }
    return tp__scope_fail(scope, TP_UNSUPPORTED, key,
                          "is %s: this key is not known here and could change attention",
                          shown(value, text));
}

tp_status tp__scope_finish(tp__scope *scope) {
    const char *key;
    json_t *value;
    json_object_foreach(scope->object, key, value) {
        if (!json_object_get(scope->seen, key)) TP_TRY(judge(scope, key, value));
    }
    return TP_OK;
}
