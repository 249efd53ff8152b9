/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 in pieces. */
#ifndef TP_PROOF_DIGEST_H
#define TP_PROOF_DIGEST_H

#include <stddef.h>
#include <stdint.h>

typedef struct tp__digest {
    uint32_t state[8];
    uint8_t block[64];
    uint64_t size;
} tp__digest;
void tp__digest_begin(tp__digest *digest);
void tp__digest_add(tp__digest *digest, const void *bytes, size_t size);
void tp__digest_end(tp__digest *digest, char text[65]); /* in hex */

#endif
