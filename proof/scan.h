/* SPDX-License-Identifier: Apache-2.0 */
/* What the JSON library does not say: how deep a text is before it is parsed, and on which line a
 * field stands. */
#ifndef TP_PROOF_SCAN_H
#define TP_PROOF_SCAN_H

#include <stddef.h>

/* The line on which brackets are nested deeper than most; 0 when they never are. Any bytes are
 * accepted. */
int tp__scan_too_deep(const char *text, size_t size, int most);

/* The line of the key at a path such as "text_config.layer_types"; 0 when it is not found. The text
   must have parsed as JSON. Keys with escapes or dots are not found. */
int tp__scan_line(const char *text, size_t size, const char *path);

#endif
