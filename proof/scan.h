/* SPDX-License-Identifier: Apache-2.0 */
/* What the JSON library does not say: on which line a field stands. */
#ifndef TP_PROOF_SCAN_H
#define TP_PROOF_SCAN_H

#include <stddef.h>

/* The line of the key at a path such as "text_config.layer_types"; 0 when it is not found. The text
   must have parsed as JSON. Keys with escapes or dots are not found. */
int tp__scan_line(const char *text, size_t size, const char *path);

#endif
