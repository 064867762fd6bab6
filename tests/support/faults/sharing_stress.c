/* Members of a shared store that append to one log, a host that closes and opens it, and a reader. A member is a thread
 * here, with a byte lock of its own; now and then one dies in the middle of a write, and another comes in its place. Run by
 * test_sharing_stress.py, built with the thread sanitizer.
 *
 * usage: sharing_stress FILE APPENDS. At the end each offset that was told has the record that it was told for, and nothing
 * else is in the log.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "contract/answers.h"
#include "contract/ends.h"
#include "contract/file.h"
#include "contract/log.h"
#include "contract/members.h"
#include "contract/share.h"
#include "contract/shared_ends.h"

enum { MEMBERS = 4, ROOM = 1 << 20, SIZE = 4096, VALUE_AT = 67, VALUE = 8, NOW_MS = 1700000000, KEY = 7, DEATHS = 40 };

/* A member, and its tail. */
typedef struct {
    seg_member member;
    seg_share share;
    seg_tail tail;
    seg_active active;
    seg_end end;
    seg_commit commit;
    int32_t failed;
} life;

typedef struct {
    pthread_t thread;
    uint32_t number;
    int64_t *told;
    int64_t deaths;
} appender;

static uint8_t *map, *ends, *offset_index, *time_index, here = 1;
static const int64_t LEN = SEG_SHARED_LOGS + SEG_SHARED_LOG, ENDS_LEN = SEG_ENDS_HEADER + SEG_ENDS_SLOT;
static char path[4096], members_path[4200];
static seg_shared_log *shared_log;
static int64_t appends, size_of_one;
static int32_t over;
static __thread jmp_buf death;
static __thread life *mine;
static __thread int64_t writes;

static void fail(const char *what, int64_t number)
{
    fprintf(stderr, "%s: %lld\n", what, (long long)number);
    exit(1);
}

/* Each DEATHS-th write of a guest is torn, and its last one. */
static int64_t put(int32_t fd, const uint8_t *const *bufs, const int64_t *lens, int64_t n, int64_t position)
{
    if (++writes % DEATHS)
        return seg_pwritev(fd, bufs, lens, n, position);
    seg_pwrite(fd, bufs[0], lens[0] / 2, position);
    close(mine->member.members_fd); /* what the kernel does at the death of a process */
    longjmp(death, 1);
}

static life *born(int32_t who)
{
    life *l = calloc(1, sizeof *l);
    l->member = (seg_member){.map = map, .len = LEN, .members_fd = open(members_path, O_RDWR), .slot = -1, .look_ms = 1,
                             .spins = 100, .here = &here, .is_host = who == SEG_OF_APPENDS};
    if (seg_member_join(&l->member, SEG_MEMBERS) < 0)
        fail("a slot", 0);
    l->share = (seg_share){.member = &l->member, .log = shared_log, .key = KEY, .generation = -1, .who = who};
    l->end = (seg_end){.rolled_ms = NOW_MS, .offset_room = ROOM / 8, .time_room = ROOM / 12};
    l->active = (seg_active){.end = &l->end, .offset_index = offset_index, .time_index = time_index, .interval = 200,
                             .most_position = INT32_MAX, .young_ms = INT64_MAX};
    l->commit.failed = &l->failed;
    l->tail = (seg_tail){.active = &l->active, .owner = &here, .plain = 1, .largest_batch = SIZE, .before_ms = INT64_MAX,
                         .after_ms = INT64_MAX, .high_watermark = -1, .stable_offset = -1, .commit = &l->commit,
                         .ends = ends, .ends_len = ENDS_LEN, .key = KEY, .share = &l->share,
                         .fd = open(path, O_RDWR), .write = who == SEG_OF_GUEST ? put : NULL};
    return l;
}

/* Bind what the log's end says, as GuestPartition._bind does. */
static void bind(life *l)
{
    seg_shared_end now;
    while (seg_tail_pause(&l->tail, 0) < 0)
        ;
    if (seg_shared_now(shared_log, &now) && __atomic_load_n(&shared_log->open, __ATOMIC_ACQUIRE)) {
        l->share.generation = now.generation;
        l->share.current = 0;
        seg_tail_begin(&l->tail);
    }
}

static int64_t append(life *l, const uint32_t *value)
{
    seg_record r = {.value = (const uint8_t *)value, .value_len = VALUE, .key_len = -1, .headers = (const uint8_t *)"",
                    .headers_len = 1, .timestamp = NOW_MS};
    return seg_tail_append(&l->tail, &r, -1, NOW_MS, NULL);
}

/* Append a record, in one life or several. */
static int64_t append_once(appender *a, uint32_t i)
{
    uint32_t value[2] = {a->number, i};
    if (setjmp(death)) {
        a->deaths++;
        mine = born(SEG_OF_GUEST); /* the dead one's memory stays, as others may look at it never again */
    }
    for (;;) {
        int64_t offset = append(mine, value);
        if (offset >= 0)
            return offset;
        if (offset != SEG_SLOW)
            fail("an append", offset);
        bind(mine);
    }
}

static void *run(void *argument)
{
    appender *a = argument;
    mine = born(SEG_OF_GUEST);
    writes = a->number * 7;
    for (int64_t i = 0; i < appends; i++)
        a->told[i] = append_once(a, (uint32_t)i);
    return NULL;
}

static void *host(void *argument)
{
    life *l = argument;
    while (!__atomic_load_n(&over, __ATOMIC_ACQUIRE)) {
        struct timespec pause = {.tv_nsec = 200000};
        nanosleep(&pause, NULL);
        if (seg_tail_pause(&l->tail, 0) < 0)
            continue;
        l->share.settings++; /* another generation */
        seg_tail_begin(&l->tail);
    }
    return NULL;
}

static void *read_ends(void *argument)
{
    seg_shared_end now;
    for (int64_t before = 0; !__atomic_load_n(&over, __ATOMIC_ACQUIRE); before = now.end.next_offset) {
        if (!seg_shared_now(shared_log, &now) || now.end.next_offset < before ||
            (now.end.next_offset && now.end.position != now.end.next_offset * size_of_one))
            fail("an end", now.end.next_offset);
    }
    return argument;
}

static void check(const appender *all)
{
    int64_t n = 1 + MEMBERS * appends, size = n * size_of_one;
    uint8_t *bytes = malloc((size_t)size + 1);
    seg_batch *batches = malloc((size_t)(n + 1) * sizeof *batches);
    seg_scan_end stop;
    int fd = open(path, O_RDONLY);
    if (pread(fd, bytes, (size_t)size + 1, 0) != size)
        fail("the size of the file", lseek(fd, 0, SEEK_END));
    int64_t found = seg_scan(bytes, size, 0, -1, 0, INT64_MAX, INT64_MAX, 1, batches, n + 1, &stop);
    if (found != n || stop.status != SEG_END)
        fail("batches", found);
    for (int64_t i = 0; i < n; i++)
        if (batches[i].base_offset != i)
            fail("a batch", i);
    for (int t = 0; t < MEMBERS; t++)
        for (int64_t i = 0; i < appends; i++) {
            uint32_t value[2] = {(uint32_t)t, (uint32_t)i};
            if (memcmp(bytes + all[t].told[i] * size_of_one + VALUE_AT, value, VALUE))
                fail("what was told", all[t].told[i]);
        }
}

static void *aligned(int64_t size)
{
    void *made = aligned_alloc(4096, (size_t)(size + 4095) / 4096 * 4096);
    return memset(made, 0, (size_t)size);
}

int main(int argc, char **argv)
{
    appender all[MEMBERS];
    pthread_t others[2];
    appends = atoll(argv[2]);
    snprintf(path, sizeof path, "%s", argv[1]);
    snprintf(members_path, sizeof members_path, "%s-members", argv[1]);
    close(open(path, O_RDWR | O_CREAT | O_TRUNC, 0600));
    close(open(members_path, O_RDWR | O_CREAT | O_TRUNC, 0600));
    map = aligned(LEN);
    ends = aligned(ENDS_LEN);
    offset_index = aligned(ROOM);
    time_index = aligned(ROOM);
    shared_log = (seg_shared_log *)(map + SEG_SHARED_LOGS);
    ((seg_shared_header *)map)->stopped_ms = 600000;
    life *l = born(SEG_OF_APPENDS);
    seg_tail_begin(&l->tail);
    uint32_t first[2] = {~0u, 0};
    if (append(l, first) != 0)
        fail("the first append", 0);
    size_of_one = l->end.position;
    for (uint32_t t = 0; t < MEMBERS; t++) {
        all[t] = (appender){.number = t, .told = calloc((size_t)appends, sizeof(int64_t))};
        pthread_create(&all[t].thread, NULL, run, &all[t]);
    }
    pthread_create(&others[0], NULL, host, l);
    pthread_create(&others[1], NULL, read_ends, NULL);
    int64_t deaths = 0;
    for (int t = 0; t < MEMBERS; t++) {
        pthread_join(all[t].thread, NULL);
        deaths += all[t].deaths;
    }
    __atomic_store_n(&over, 1, __ATOMIC_RELEASE);
    pthread_join(others[0], NULL);
    pthread_join(others[1], NULL);
    while (seg_tail_pause(&l->tail, 0) < 0) /* cuts what the last one to die has left */
        ;
    check(all);
    printf("%lld\n", (long long)deaths);
    return 0;
}
