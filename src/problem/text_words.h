/* SPDX-License-Identifier: Apache-2.0 */
/* The words of the text form: each function reads the value of the word at hand. */
#ifndef TP_PROBLEM_TEXT_WORDS_H
#define TP_PROBLEM_TEXT_WORDS_H

#include "base/error.h"
#include "tileproof.h"

enum { TP__MAX_RUNS = sizeof((tp_lengths *)0)->seq / sizeof((tp_lengths *)0)->seq[0] };

/* Masks in the order given: which word of mask_text.c, and its node. */
typedef struct tp__mask_list {
    int count, word[8];
    tp_mask_node node[8];
} tp__mask_list;

typedef struct tp__words {
    const char *word, *end; /* the word at hand */
    const char *at;         /* what of it is still to be read */
    unsigned seen;          /* subjects already spoken of, as bits */
    const char *phase;      /* the phase word given, or NULL */
    int phase_size;
    tp_problem problem;
    tp__mask_list masks;
    tp_lengths lengths;
    int32_t scales[2];      /* as given: of k and of v, or one for both; 0: not given */
    tp_error *error;
} tp__words;

/* A longer word is only begun in the error's text. */
static inline int tp__word_size(const tp__words *w) {
    return w->end - w->word < 120 ? (int)(w->end - w->word) : 120;
}

#define TP__REFUSE_WORD(words, rule, ...)                                                          \
    tp__fail((words)->error, TP_INVALID, "word '%.*s': " rule, tp__word_size(words),               \
             (words)->word, ##__VA_ARGS__)

tp_status tp__take_phase(tp__words *w);
tp_status tp__take_batch(tp__words *w);
tp_status tp__take_heads(tp__words *w);
tp_status tp__take_rows(tp__words *w);
tp_status tp__take_keys(tp__words *w);
tp_status tp__take_sequences(tp__words *w);
tp_status tp__take_dims(tp__words *w);
tp_status tp__take_dtypes(tp__words *w);
tp_status tp__take_packed(tp__words *w);
tp_status tp__take_packed_q(tp__words *w);
tp_status tp__take_packed_kv(tp__words *w);
tp_status tp__take_padded(tp__words *w);
tp_status tp__take_top_left(tp__words *w);
tp_status tp__take_bias(tp__words *w);
tp_status tp__take_softcap(tp__words *w);
tp_status tp__take_dropout(tp__words *w);
tp_status tp__take_p(tp__words *w);
tp_status tp__take_qscale(tp__words *w);
tp_status tp__take_scale(tp__words *w);
tp_status tp__take_scales(tp__words *w);
tp_status tp__take_paged(tp__words *w);
tp_status tp__take_sparse(tp__words *w);
tp_status tp__take_cascade(tp__words *w);
tp_status tp__take_sparse_sorted(tp__words *w);

/* The problem's scales, once its dtypes are known: those given, or each dtype's own. */
tp_status tp__finish_scales(tp__words *w);

/* Does the word begin with a dtype's name? */
int tp__word_is_dtypes(const tp__words *w);

#endif
