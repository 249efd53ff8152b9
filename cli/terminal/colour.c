/* SPDX-License-Identifier: Apache-2.0 */
#include "terminal/terminal.h"

#include <stdlib.h>

static int is_coloured(FILE *out) {
    const char *no = getenv("NO_COLOR");
    return is_capable(out) && !(no && *no);
}

void print_coloured(FILE *out, enum colour colour, const char *text) {
    static const int codes[] = {0, 32, 33, 31, 35, 34};
    if (colour != COLOUR_NONE && is_coloured(out))
        fprintf(out, "\033[%dm%s\033[0m", codes[colour], text);
    else
        fputs(text, out);
}
