/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TP_BASE_CONSTANTS_H
#define TP_BASE_CONSTANTS_H

/* log2(e): a weight is e^s = 2^(s log2(e)). */
#define TP__LOG2_E 1.4426950408889634

#endif
