/* One thread opens a tail over and over, as the holder of the append token does, and others quit it, as the pool of
 * descriptors does: more of them than processors, so that one is stopped within the call now and then. Run by test_combining.py.
 *
 * usage: quitting FILE TIMES. Ends with an error if the tail is ever open without a descriptor.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "contract/answers.h"
#include "contract/ends.h"
#include "contract/log.h"

enum { QUITTERS = 4 };

static uint8_t here = 1;
static seg_end end_of_log;
static seg_active active = {.end = &end_of_log};
static seg_commit commit_of_log;
static seg_tail tail = {.active = &active, .owner = &here, .high_watermark = -1, .stable_offset = -1,
                        .commit = &commit_of_log};
static int32_t over;

static void *quit(void *argument)
{
    int64_t *quits = argument;
    while (!__atomic_load_n(&over, __ATOMIC_ACQUIRE))
        *quits += seg_tail_quit(&tail);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t others[QUITTERS];
    int64_t times = atoll(argv[2]), quits[QUITTERS] = {0}, all = 0, opened = 0;
    seg_syncer sync;
    int32_t fd = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0600), used;
    for (int i = 0; i < QUITTERS; i++)
        pthread_create(&others[i], NULL, quit, &quits[i]);
    for (int64_t i = 0; i < times; i++) {
        seg_tail_pause(&tail, 0);
        __atomic_store_n(&tail.fd, fd, __ATOMIC_RELAXED);
        seg_tail_begin(&tail);
        if (seg_tail_to_sync(&tail, &used, &sync, NULL) == SEG_SLOW)
            continue;
        opened++;
        if (used < 0) {
            fprintf(stderr, "open without a descriptor, the %lldth time\n", (long long)i);
            _Exit(1); /* the others are at it still */
        }
    }
    __atomic_store_n(&over, 1, __ATOMIC_RELEASE);
    for (int i = 0; i < QUITTERS; i++) {
        pthread_join(others[i], NULL);
        all += quits[i];
    }
    printf("%lld %lld\n", (long long)opened, (long long)all);
    return 0;
}
