/* SPDX-License-Identifier: Apache-2.0 */
/* How a cache keeps keys and values, from its words: docs/quantised.md. */
#ifndef TP_PROOF_CACHE_FORMAT_H
#define TP_PROOF_CACHE_FORMAT_H

#include "fail.h"

enum { TP__FORMAT_TEXT = 64 }; /* longer than any format's words */

typedef struct tp__side {
    int32_t dtype, scales; /* tp_dtype and tp_scales; 0: plain */
} tp__side;
typedef struct tp__format {
    tp__side k, v;
} tp__format;

/* The format of these words, which are whole. NULL and "": plain. */
tp_status tp__format_read(const char *words, tp__format *format, tp_error *error);
void tp__format_print(const tp__format *format, char text[TP__FORMAT_TEXT]);
int tp__format_is_plain(const tp__format *format);
/* The format that was asked for a model. TP_INVALID too where nothing was and the model's file names a lossy one: that is
   nobody's choice yet. */
tp_status tp__format_for(const tp_model *model, const char *words, tp__format *format, tp_error *error);
/* The dtypes of q, k, v and o in words, "bf16:i8:i8->bf16", and what their scales need, " scales=q8_0" or "". */
void tp__format_words(const tp__format *format, int32_t dtype, char dtypes[TP__FORMAT_TEXT], char scales[TP__FORMAT_TEXT]);
/* Bytes of a row of one side with its scales; plain: in this dtype. */
int64_t tp__side_bytes(const tp__side *side, int32_t dtype, int64_t dim);

#endif
