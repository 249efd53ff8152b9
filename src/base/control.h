/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The floating-point environment that all arithmetic here is written for: round to nearest, no flush to zero, no
 * exception traps. A caller's own must neither change a result nor turn an overflow on the way into a signal, so it
 * is put aside at every entry point behind which there is arithmetic, and given back.
 */
#ifndef TP_BASE_CONTROL_H
#define TP_BASE_CONTROL_H

#include <fenv.h>

/* The whole environment, of all the processor's units: where the C library reads or writes numbers, which it rounds by
   the mode of its own choice of unit. */
static inline fenv_t tp__fenv_take(void) {
    fenv_t saved;
    fegetenv(&saved);
    fesetenv(FE_DFL_ENV);
    return saved;
}
static inline void tp__fenv_restore(fenv_t saved) { fesetenv(&saved); }

/* What arithmetic here obeys of it, and quicker where the rest need not be touched. */
#if defined(__SSE__)
typedef unsigned int tp__control;
#define TP__DEFAULT_MXCSR 0x1f80u
static inline tp__control tp__control_take(void) {
    tp__control saved = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(TP__DEFAULT_MXCSR);
    return saved;
}
static inline void tp__control_restore(tp__control saved) { __builtin_ia32_ldmxcsr(saved); }
#else
typedef fenv_t tp__control;
static inline tp__control tp__control_take(void) { return tp__fenv_take(); }
static inline void tp__control_restore(tp__control saved) { tp__fenv_restore(saved); }
#endif

/* The same from here to the end of the block, however it is left: rules are comparisons, which trap at a NaN. */
static inline void tp__control_leave(const tp__control *saved) { tp__control_restore(*saved); }
#define TP__IN_DEFAULT_CONTROL \
    __attribute__((cleanup(tp__control_leave), unused)) const tp__control control_before_ = tp__control_take()
/* And of the whole environment. */
static inline void tp__fenv_leave(const fenv_t *saved) { tp__fenv_restore(*saved); }
#define TP__IN_DEFAULT_FENV __attribute__((cleanup(tp__fenv_leave), unused)) const fenv_t fenv_before_ = tp__fenv_take()

#endif
