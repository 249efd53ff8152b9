/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a fuzz target without libFuzzer: every file of the folders given, then seeded damage to
 * each: truncation, bytes replaced, pieces doubled or cut out. The same on every run.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX = 1 << 16, DAMAGES = 150 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t next(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static long runs;

/* An exact copy, so that a sanitizer sees a read beyond the end. */
static void run(const uint8_t *bytes, size_t size) {
    uint8_t *copy = malloc(size ? size : 1);
    if (!copy) exit(2);
    memcpy(copy, bytes, size);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
    runs++;
}

static void damage(const uint8_t *bytes, size_t size, uint64_t *seed) {
    static const char marks[] = "\"{}[]:,-0123456789.eEnulltrue \n\\\xff";
    static uint8_t work[2 * MAX];
    memcpy(work, bytes, size);
    size_t at = next(seed) % size, length = 1 + next(seed) % 16;
    if (at + length > size) length = size - at;
    switch (next(seed) % 4) {
    case 0: run(work, at); return;
    case 1:
        for (size_t i = 0; i < 1 + length / 8; i++)
            work[next(seed) % size] = (uint8_t)marks[next(seed) % (sizeof marks - 1)];
        break;
    case 2:
        memmove(work + at + length, work + at, size - at);
        size += length;
        break;
    case 3:
        memmove(work + at, work + at + length, size - at - length);
        size -= length;
        break;
    }
    run(work, size);
}

static int replay_file(const char *path) {
    static uint8_t bytes[MAX];
    uint64_t seed = 1;
    FILE *file = fopen(path, "rb");
    if (!file) return perror(path), 1;
    size_t size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    run(bytes, size);
    for (int i = 0; size && i < DAMAGES; i++) damage(bytes, size, &seed);
    return 0;
}

static int replay_folder(const char *folder, int *files) {
    DIR *directory = opendir(folder);
    if (!directory) return perror(folder), 1;
    int failed = 0;
    for (struct dirent *entry; (entry = readdir(directory));) {
        char path[4096];
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        failed |= replay_file(path);
        ++*files;
    }
    closedir(directory);
    return failed;
}

int main(int argc, char **argv) {
    int files = 0, failed = 0;
    for (int i = 1; i < argc; i++) failed |= replay_folder(argv[i], &files);
    printf("%d files, %ld inputs\n", files, runs);
    return failed || !files;
}
