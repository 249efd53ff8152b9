/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TP_MACHINE_AMX_H
#define TP_MACHINE_AMX_H

/* Whether tiles of bf16 are there: advertised, permitted to this process, which it asks for, and seen to work, once for
   each process. */
int tp__amx_works(void);

#endif
