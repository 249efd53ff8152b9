/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The floating-point environment in which numbers are read, printed, compared and computed here: the default one, at every
 * entry point behind which there are any. A caller's own must change no text, since locks are keyed by texts, and turn no
 * rounding into a signal. Writers, engines and other functions of the caller's that are called meanwhile run in it, too. As
 * base/control.h of the core, which is not seen from here.
 */
#ifndef TP_PROOF_CONTROL_H
#define TP_PROOF_CONTROL_H

#include <fenv.h>

static inline fenv_t tp__fenv_take(void) {
    fenv_t saved;
    fegetenv(&saved);
    fesetenv(FE_DFL_ENV);
    return saved;
}
static inline void tp__fenv_leave(const fenv_t *saved) { fesetenv(saved); }

/* From here to the end of the block, however it is left. */
#define TP__IN_DEFAULT_FENV __attribute__((cleanup(tp__fenv_leave), unused)) const fenv_t fenv_before_ = tp__fenv_take()

#endif
