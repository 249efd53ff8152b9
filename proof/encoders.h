/* SPDX-License-Identifier: Apache-2.0 */
/* Towers that see all of their input at once: images, audio, and text encoders. */
#ifndef TP_PROOF_ENCODERS_H
#define TP_PROOF_ENCODERS_H

#include "builder.h"

typedef struct tp__encoder tp__encoder;

/* NULL when there is no such encoder. */
const tp__encoder *tp__encoder_find(const char *type);
/* The part an encoder is of. */
int32_t tp__encoder_part(const tp__encoder *encoder);
/* *tokens: those of one input of the file's own size, 0 when that is not fixed. */
tp_status tp__encoder_read(const tp__encoder *encoder, tp__scope *scope, int32_t dtype,
                           tp__builder *builder, int64_t *tokens);
/* An encoder and a decoder with cross attention, in one object. */
tp_status tp__whisper_read(tp__scope *scope, tp__builder *builder);

#endif
