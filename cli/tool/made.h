/* SPDX-License-Identifier: Apache-2.0 */
/* Who made a file and when: what every row of qualify and bench says, for files that are one object. */
#ifndef TILEPROOF_CLI_TOOL_MADE_H
#define TILEPROOF_CLI_TOOL_MADE_H

#include <jansson.h>

/* Version, build, instruction sets, host, operating system and date, of this process. NULL: out of memory. */
json_t *made_here(void);
/* The same of a file that tells of calls made elsewhere: only who summed them up, and when. */
json_t *made_of_others(void);

#endif
