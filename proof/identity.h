/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TP_PROOF_IDENTITY_H
#define TP_PROOF_IDENTITY_H

#include "tileproof_proof.h"

/* "avx2,avx512", or "none": the key under which a lock keeps cells. */
void tp__isa_text(uint32_t isa, char text[64]);

#endif
