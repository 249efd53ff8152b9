/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading one object of a config. A scope remembers which keys were asked for: what nobody asked
 * for and no table calls harmless is unknown, and the file is refused (tp__scope_finish). So a key
 * cannot be forgotten silently.
 *
 * An absent key, a null and a number are three different things: absent means the class default,
 * null means what the field's rule says.
 */
#ifndef TP_PROOF_SCOPE_H
#define TP_PROOF_SCOPE_H

#include "json.h"

typedef struct tp__source {
    const char *text, *name;
    size_t size;
    tp_error *error;
    json_t *ignore;  /* object used as a set: keys the file asks to ignore */
    json_t *ignored; /* those that were met */
    char hash[65];   /* of the whole file */
    const char *assume; /* the family of an unknown model_type; NULL: none */
    const char *label;  /* asked for; NULL: made of the name */
    int assumed;        /* it was needed */
    const char *cache;  /* the format that the file names, a constant; NULL: none */
    int no_memory;   /* it ran out on the way: whatever was read after that means nothing */
} tp__source;

typedef struct tp__scope {
    tp__source *source;
    json_t *object; /* borrowed; NULL: empty */
    json_t *seen;   /* object used as a set */
    char path[128]; /* "" at the top, else "text_config" */
    char used[64];  /* the last name found */
    int complete;   /* 0: this family's keys are not all known and none is refused */
} tp__scope;

typedef enum tp__state { TP__ABSENT, TP__NULL, TP__VALUE } tp__state;

tp_status tp__scope_open(tp__scope *scope, tp__source *source, json_t *object, const char *path);
/* Every key was read or is harmless, or: TP_UNSUPPORTED with the key's name. */
tp_status tp__scope_finish(tp__scope *scope);
void tp__scope_close(tp__scope *scope);

/* NAME:LINE: and the field's full name, then the text. */
tp_status tp__scope_fail(const tp__scope *scope, tp_status status, const char *key,
                         const char *format, ...) __attribute__((format(printf, 4, 5)));

/* names is "a|b|c": aliases, all of which must agree. *used is the one found, or the first. */
json_t *tp__scope_find(tp__scope *scope, const char *names, const char **used);
/* *value is written when the state is TP__VALUE; otherwise it keeps the default it came with. */
tp_status tp__scope_int(tp__scope *scope, const char *names, int64_t min, int64_t max,
                        int64_t *value, tp__state *state);
/* As above, but a null is refused. */
tp_status tp__scope_count(tp__scope *scope, const char *names, int64_t min, int64_t max,
                          int64_t *value);
/* Finite and in min..max. Null counts as 0 where null_is_0. */
tp_status tp__scope_real(tp__scope *scope, const char *names, double min, double max,
                         int null_is_0, double *value);
/* true, false; null counts as the default. */
tp_status tp__scope_bool(tp__scope *scope, const char *name, int *value);
/* NULL when absent or null. */
tp_status tp__scope_string(tp__scope *scope, const char *names, const char **value);
/* NULL when absent or null. */
tp_status tp__scope_object(tp__scope *scope, const char *name, json_t **value);
tp_status tp__scope_array(tp__scope *scope, const char *name, json_t **value);

#endif
