/* SPDX-License-Identifier: Apache-2.0 */
/* Can so many threads be started? Found out by starting them. */
#ifndef TP_MACHINE_TRIAL_H
#define TP_MACHINE_TRIAL_H

/* Starts `count` threads that all exist at once, with the default stack, and ends them again. Returns how many
   could be started; where that is fewer, *reason is pthread_create's error number. When it returns, the kernel
   has taken them off its books, so that as many can be started anew unless someone else does meanwhile. */
int tp__threads_start(int count, int *reason);

#endif
