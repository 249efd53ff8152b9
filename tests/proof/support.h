/* SPDX-License-Identifier: Apache-2.0 */
/* Models, qualifications and locks for tests: small, and made as if they had run. */
#ifndef TEST_PROOF_SUPPORT_H
#define TEST_PROOF_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tileproof_proof.h"

/* Layers 0-3, h4/2 d64 f32 causal. */
extern const char support_config[];

struct text {
    char *bytes;
    size_t size;
};
int text_collect(void *cookie, const char *bytes, size_t size); /* a tp_write of a struct text */

tp_model *support_model(const char *text); /* with the name a/model.json */
/* Declared as torch=2.4,engine=1. A copy, whose texts live as long as the program: tests change fields of it. */
tp_identity support_identity(void);

/* Every cell gets the result that a run on the best kernel of this host would give it: only the numbers are made up. */
void support_pretend(tp_qualification *q);
/* The quick cells of the model, pretended. */
tp_qualification *support_qualification(tp_model *model);
/* The same, put into the lock. */
void support_put(tp_lock *lock, tp_model *model, const tp_identity *identity, const char *reason);
/* What q has seen of its one model, where the cell `which` is this one instead. */
void support_put_with(tp_lock *lock, const tp_qualification *q, const tp_model *model, const tp_identity *identity, int64_t which,
                      const tp_cell *instead);
/* As support_put, where one cell is changed. */
void support_put_changed(tp_lock *lock, tp_model *model, const tp_identity *identity, int64_t which,
                         void (*change)(tp_cell *cell));
struct text support_write(const tp_lock *lock);
/* The text of a lock with the model's cells. */
struct text support_lock(tp_model *model, const tp_identity *identity);
tp_lock *support_parse(const struct text *text);
/* old.lock: of the schema tileproof.lock/1, with two models on two ISAs, and a third ISA without a cell. */
struct text support_old_lock(void);
/* The first place of `from` becomes `to`. */
void text_replace(struct text *text, const char *from, const char *to);
tp_context *support_context(tp_policy policy, const char *disable);
/* Would the context serve this problem? */
tp_status support_asks(tp_context *context, const char *text);

#endif
