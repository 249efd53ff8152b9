/* SPDX-License-Identifier: Apache-2.0 */
/* Floating-point environments of callers, each unlike the one in which results are defined. _GNU_SOURCE must be defined. */
#ifndef TP_TESTS_SUPPORT_ENVIRONMENT_H
#define TP_TESTS_SUPPORT_ENVIRONMENT_H

#include <fenv.h>

static const struct environment {
    const char *name;
    int rounding, traps;
    unsigned word; /* of MXCSR */
} environments[] = {
    {"round up", FE_UPWARD, 0, 0},
    {"round down", FE_DOWNWARD, 0, 0},
    {"round to zero", FE_TOWARDZERO, 0, 0},
    {"overflow, division by zero and invalid trap", FE_TONEAREST, FE_OVERFLOW | FE_DIVBYZERO | FE_INVALID, 0},
    {"every exception traps", FE_TONEAREST, FE_ALL_EXCEPT, 0},
    {"flush to zero", FE_TONEAREST, 0, 0x8040},
    {"all at once", FE_UPWARD, FE_OVERFLOW | FE_INEXACT, 0x8040},
};
enum { ENVIRONMENTS = sizeof environments / sizeof *environments };

/* From here on the test must compute exactly, too. */
static inline fenv_t environment_enter(const struct environment *environment) {
    fenv_t before;
    fegetenv(&before);
    feclearexcept(FE_ALL_EXCEPT);
    fesetround(environment->rounding);
#if defined(__SSE__)
    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | environment->word);
#endif
    feenableexcept(environment->traps);
    return before;
}

/* Nonzero: it is still the environment. */
static inline int environment_leave(const struct environment *environment, fenv_t before) {
    int kept = fegetround() == environment->rounding && fegetexcept() == environment->traps;
#if defined(__SSE__)
    kept = kept && (__builtin_ia32_stmxcsr() & environment->word) == environment->word;
#endif
    fesetenv(&before);
    return kept;
}

#endif
