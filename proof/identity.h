/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TP_PROOF_IDENTITY_H
#define TP_PROOF_IDENTITY_H

#include "tileproof_proof.h"

/* "avx2,avx512", or "none": the key under which a lock keeps cells. It names the bits of a host that any kernel of this
   library needs: others decide nothing. */
void tp__lock_key(uint32_t isa, char key[64]);

#endif
