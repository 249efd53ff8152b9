/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TP_MACHINE_AMX_H
#define TP_MACHINE_AMX_H

/* Whether tiles of bf16 are there: advertised, permitted to this process, which it asks for, and seen to work, once for
   each process. */
int tp__amx_works(void);

/* Whether the attempt returns 0 in a child that shares memory; a trap is another answer. One caller at a time. x86-64 Linux. */
typedef int tp__attempt(void);
int tp__works_in_child(tp__attempt *attempt);

#endif
