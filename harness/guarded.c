/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/guarded.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct piece {
    void *memory;
    char *map;
    size_t bytes; /* of the map */
} *pieces;
static size_t count, capacity;

static struct piece *new_piece(void) {
    if (count == capacity) {
        size_t more = capacity ? 2 * capacity : 64;
        struct piece *larger = realloc(pieces, more * sizeof *larger);
        if (!larger) return NULL;
        pieces = larger;
        capacity = more;
    }
    return &pieces[count];
}

void *guarded_take(enum guarded_side side, size_t bytes, size_t unit, int fill) {
    if (side == GUARDED_NOT) {
        void *memory = NULL;
        if (posix_memalign(&memory, unit < 64 ? 64 : unit, bytes ? bytes : 1)) return NULL;
        return fill < 0 ? memory : memset(memory, fill, bytes);
    }
    size_t page = (size_t)sysconf(_SC_PAGESIZE), inside = (bytes + page - 1) / page * page;
    struct piece *piece = new_piece();
    if (!piece) return NULL;
    char *map = mmap(NULL, inside + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) return NULL;
    if (inside && mprotect(map + page, inside, PROT_READ | PROT_WRITE)) {
        munmap(map, inside + 2 * page);
        return NULL;
    }
    if (fill >= 0) memset(map + page, fill, inside);
    *piece = (struct piece){map + page + (side == GUARDED_END ? inside - bytes : 0), map, inside + 2 * page};
    count++;
    return piece->memory;
}

void guarded_free(enum guarded_side side, void *memory) {
    if (side == GUARDED_NOT) free(memory);
    for (size_t i = count; side != GUARDED_NOT && memory && i-- > 0;)
        if (pieces[i].memory == memory) {
            munmap(pieces[i].map, pieces[i].bytes);
            pieces[i] = pieces[--count];
            return;
        }
}
