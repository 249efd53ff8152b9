/* SPDX-License-Identifier: Apache-2.0 */
#include "qualify.h"
int command_canary(const struct options *options) { (void)options; return EXIT_FAILED; }
