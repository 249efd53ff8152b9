/* SPDX-License-Identifier: Apache-2.0 */
/* Failing with a reason: value and rule, in release builds too. */
#ifndef TP_BASE_ERROR_H
#define TP_BASE_ERROR_H

#include "tileproof.h"

/* Fills in *error when there is one and returns the status. */
tp_status tp__fail(tp_error *error, tp_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Leaves the calling function with a status and a reason unless the condition holds. */
#define TP_REQUIRE(condition, error, status, ...)                                                  \
    do {                                                                                           \
        if (!(condition)) return tp__fail((error), (status), __VA_ARGS__);                         \
    } while (0)

/* Leaves the calling function when a callee failed; the callee has filled in the reason. */
#define TP_TRY(call)                                                                               \
    do {                                                                                           \
        tp_status try_status_ = (call);                                                            \
        if (try_status_ != TP_OK) return try_status_;                                              \
    } while (0)

#endif
