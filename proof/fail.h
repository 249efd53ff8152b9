/* SPDX-License-Identifier: Apache-2.0 */
/* Failing with a reason, for a library that sees the core's public header only. */
#ifndef TP_PROOF_FAIL_H
#define TP_PROOF_FAIL_H

#include "tileproof_proof.h"

tp_status tp__proof_fail(tp_error *error, tp_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define TP_TRY(call)                                                                               \
    do {                                                                                           \
        tp_status try_status_ = (call);                                                            \
        if (try_status_ != TP_OK) return try_status_;                                              \
    } while (0)

#endif
