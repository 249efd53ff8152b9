/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers as people read them. */
#include "cli.h"

#include <inttypes.h>

const char *grouped(int64_t value, char text[32]) {
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%" PRId64, value);
    int at = 0;
    for (int i = 0; i < length; i++) {
        text[at++] = digits[i];
        int left = length - 1 - i;
        if (left > 0 && left % 3 == 0 && digits[i] != '-') text[at++] = ',';
    }
    text[at] = 0;
    return text;
}

const char *readable_bytes(double bytes, char text[32]) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int unit = 0;
    while (bytes >= 1024 && unit < 4) {
        bytes /= 1024;
        unit++;
    }
    snprintf(text, 32, "%.4g %s", bytes, units[unit]);
    return text;
}
