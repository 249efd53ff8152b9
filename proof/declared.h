/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model that no config describes, as layer groups in the problem's text form:
 *     {"tileproof_model": 1,
 *      "groups": [{"layers": "0-40/2", "problem": "h16/8 d256 bf16 causal window=4095,0
 * softcap=50"},
 *                 {"layers": "1-41/2", "problem": "h16/8 d256 bf16 causal softcap=50"}]}
 */
#ifndef TP_PROOF_DECLARED_H
#define TP_PROOF_DECLARED_H

#include "builder.h"

/* context is the tp__builder. */
tp_status tp__declared_read(tp__scope *top, const char *type, void *context);

#endif
