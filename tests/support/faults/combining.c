/* Appends of several threads to one log, beside one that pauses it and opens it again, and signals: no lock of the
 * interpreter's keeps them apart here. Run by test_combining.py, built with the thread sanitizer.
 *
 * usage: combining FILE APPENDS. Each append writes its thread and its number. At the end each offset that was told
 * has the record that it was told for, nothing else is in the log, and each index entry is of a batch.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "contract/answers.h"
#include "contract/combine.h"
#include "contract/ends.h"
#include "contract/file.h"
#include "contract/log.h"

enum { THREADS = 6, ROOM = 1 << 20, SIZE = 4096, VALUE_AT = 67, VALUE = 8, NOW_MS = 1700000000 };

typedef struct {
    pthread_t thread;
    uint32_t number;
    int64_t *told; /* the offset of each append */
    int64_t slow;
} appender;

static uint8_t here = 1, batch[SIZE];
static seg_batch header;
static int64_t appends, writes;
static int32_t over;
static pthread_barrier_t appended; /* no thread is joined before it gets its last signal */
static seg_end end_of_log = {.rolled_ms = NOW_MS, .offset_room = ROOM / 8, .time_room = ROOM / 12};
static seg_active active = {.end = &end_of_log, .interval = 200, .most_position = INT32_MAX, .young_ms = INT64_MAX};
static seg_commit commit_of_log;
static seg_tail tail = {.active = &active, .owner = &here, .plain = 1, .largest_batch = SIZE, .before_ms = INT64_MAX,
                        .after_ms = INT64_MAX, .high_watermark = -1, .stable_offset = -1, .commit = &commit_of_log};

static void fail(const char *what, int64_t number)
{
    fprintf(stderr, "%s: %lld\n", what, (long long)number);
    exit(1);
}

/* The log's writer: slow, so that others come meanwhile; each 50th write of several fails. Under the tail's lock. */
static int64_t put(int32_t fd, const uint8_t *const *bufs, const int64_t *lens, int64_t n, int64_t position)
{
    int64_t together = n > 1 ? ++writes : 0;
    struct timespec pause = {.tv_nsec = 5000};
    nanosleep(&pause, NULL);
    if (together && together % 50 == 0) {
        seg_pwrite(fd, bufs[0], lens[0] / 2, position);
        return -ENOSPC;
    }
    return seg_pwritev(fd, bufs, lens, n, position);
}

static int64_t append_record(const uint8_t *value)
{
    seg_record r = {.value = value, .value_len = VALUE, .key_len = -1, .headers = (const uint8_t *)"", .headers_len = 1,
                    .timestamp = NOW_MS};
    return seg_tail_append(&tail, &r, -1, NOW_MS, NULL);
}

/* The same as encoded batches. */
static int64_t append_batch(const uint8_t *value)
{
    uint8_t mine[SIZE];
    seg_batch h = header;
    memcpy(mine, batch, (size_t)h.size);
    memcpy(mine + VALUE_AT, value, VALUE);
    h.last_offset -= h.base_offset;
    h.base_offset = 0;
    if (seg_seal(mine, h.size, &h) < 0)
        fail("seg_seal", 0);
    return seg_tail_write(&tail, mine, h.size, &h, 1, -1, NOW_MS, 0);
}

static void *run(void *argument)
{
    appender *a = argument;
    for (int64_t i = 0; i < appends; i++) {
        uint32_t value[2] = {a->number, (uint32_t)i};
        int64_t offset;
        while ((offset = (i & 1 ? append_record : append_batch)((const uint8_t *)value)) < 0) {
            if (offset != SEG_SLOW)
                fail("an append", offset);
            a->slow++;
            sched_yield();
        }
        a->told[i] = offset;
    }
    pthread_barrier_wait(&appended);
    return NULL;
}

/* Have the log follow for a while: nobody's appends come to it then, though a thread may have seen it lead. */
static void follow(void)
{
    tail.follows = 1;
    int64_t end = end_of_log.next_offset;
    seg_tail_begin(&tail);
    for (int i = 0; i < 20; i++)
        sched_yield();
    while (seg_tail_pause(&tail, 0) < 0)
        ;
    if (end_of_log.next_offset != end)
        fail("a follower's log has grown to", end_of_log.next_offset);
    tail.follows = 0;
}

/* Pause and open it, as who takes the append token does, and let signals come. */
static void *disturb(void *argument)
{
    appender *all = argument;
    while (!__atomic_load_n(&over, __ATOMIC_ACQUIRE)) {
        struct timespec pause = {.tv_nsec = 200000};
        nanosleep(&pause, NULL);
        pthread_kill(all[rand() % THREADS].thread, SIGUSR1);
        if (seg_tail_pause(&tail, 0) < 0)
            continue;
        tail.torn = 0;
        follow();
        seg_tail_begin(&tail);
    }
    return NULL;
}

static void ignore(int number) {}

static void begin(const char *path)
{
    struct sigaction action = {.sa_handler = ignore}; /* without SA_RESTART: futex(2) is interrupted */
    sigaction(SIGUSR1, &action, NULL);
    tail.fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    active.offset_index = calloc(1, ROOM);
    active.time_index = calloc(1, ROOM);
    tail.ends_len = SEG_ENDS_HEADER + SEG_ENDS_SLOT;
    tail.ends = aligned_alloc(64, (size_t)tail.ends_len);
    memset(tail.ends, 0, (size_t)tail.ends_len);
    seg_tail_begin(&tail);
    uint8_t value[VALUE] = {0xff, 0xff, 0xff, 0xff};
    seg_scan_end stop;
    if (append_record(value) != 0)
        fail("the first append", 0);
    int64_t size = pread(tail.fd, batch, SIZE, 0);
    if (seg_scan(batch, size, 0, -1, 0, INT64_MAX, INT64_MAX, 1, &header, 1, &stop) != 1)
        fail("the first batch", size);
    tail.write = put;
}

/* Whether all that was told is in the log, in one batch each, and nothing else. */
static void check(const appender *all)
{
    int64_t n = 1 + THREADS * appends, size = end_of_log.position, at = 0;
    uint8_t *log = malloc((size_t)size);
    seg_batch *batches = malloc((size_t)(n + 1) * sizeof *batches);
    seg_scan_end stop;
    if (pread(tail.fd, log, (size_t)size, 0) != size)
        fail("bytes of the log", size);
    int64_t found = seg_scan(log, size, 0, -1, 0, INT64_MAX, INT64_MAX, 1, batches, n + 1, &stop);
    if (found != n || stop.status != SEG_END || end_of_log.next_offset != n || tail.shown_offset != n)
        fail("batches", found);
    for (int64_t i = 0; i < n; i++, at += header.size)
        if (batches[i].base_offset != i || batches[i].position != at)
            fail("a batch", i);
    for (int t = 0; t < THREADS; t++)
        for (int64_t i = 0; i < appends; i++) {
            uint32_t value[2] = {(uint32_t)t, (uint32_t)i};
            if (memcmp(log + all[t].told[i] * header.size + VALUE_AT, value, VALUE))
                fail("what was told", all[t].told[i]);
        }
    for (int64_t i = 1, before = -1; i < end_of_log.offset_entries; i++) {
        const uint8_t *entry = active.offset_index + 8 * i;
        int64_t position = ((int64_t)entry[4] << 24) | entry[5] << 16 | entry[6] << 8 | entry[7];
        if (position % header.size || position <= before)
            fail("an index entry", i);
        before = position;
    }
}

int main(int argc, char **argv)
{
    appender all[THREADS];
    pthread_t other;
    appends = atoll(argv[2]);
    begin(argv[1]);
    pthread_barrier_init(&appended, NULL, THREADS + 1);
    for (uint32_t t = 0; t < THREADS; t++)
        all[t] = (appender){.number = t, .told = calloc((size_t)appends, sizeof(int64_t))};
    for (int t = 0; t < THREADS; t++)
        pthread_create(&all[t].thread, NULL, run, &all[t]);
    pthread_create(&other, NULL, disturb, all);
    pthread_barrier_wait(&appended);
    __atomic_store_n(&over, 1, __ATOMIC_RELEASE);
    pthread_join(other, NULL);
    int64_t slow = 0;
    for (int t = 0; t < THREADS; t++) {
        pthread_join(all[t].thread, NULL);
        slow += all[t].slow;
    }
    check(all);
    printf("%lld %lld\n", (long long)writes, (long long)slow);
    return 0;
}
