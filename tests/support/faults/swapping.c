/* Members that swap the ends of shared logs as fast as they can, a host that swaps two of them as one, and readers. Run by
 * test_shared_ends.py, built with the thread sanitizer.
 *
 * usage: swapping IGNORED TIMES. All words of a record say one number, the offset of its end, but the leader epoch, which
 * the host alone moves, in logs 0 and 1 as one. So a look that is of two moments has numbers that don't agree. The host
 * stops now and then between its steps, as a dead one does until the next one comes. Prints looks and swaps as one.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "contract/ends.h"
#include "contract/shared_ends.h"

enum { LOGS = 3, MEMBERS = 3, READERS = 2, HOST = 15, KEY = 70, SPINS = 100000, PAUSE_EACH = 16 };

static int64_t ends[(SEG_ENDS_HEADER + LOGS * SEG_ENDS_SLOT) / 8];
static int64_t file[(SEG_SHARED_LOGS + LOGS * SEG_SHARED_LOG) / 8];
static const seg_shared_map shared = {(uint8_t *)file, sizeof file};
static pthread_mutex_t locks[LOGS] = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER};
static int64_t times, looks, together_looks, wakes;
static uint32_t nudges;
static int running = MEMBERS + 1;

static uint8_t *ends_map(void)
{
    return (uint8_t *)ends;
}

static seg_shared_log *log_of(int number)
{
    return (seg_shared_log *)((uint8_t *)file + SEG_SHARED_LOGS + number * SEG_SHARED_LOG);
}

static void die(const char *what, int64_t a, int64_t b)
{
    fprintf(stderr, "%s: %lld, %lld\n", what, (long long)a, (long long)b);
    exit(1);
}

/* Fill a record of this seat that is not current, for a log that ends `more` further: the word that names it. */
static uint64_t fill(seg_shared_log *log, int seat, int64_t more, int64_t epoch)
{
    uint64_t current = __atomic_load_n(&log->current, __ATOMIC_ACQUIRE);
    seg_shared_end now = {0}, next;
    if (current && !seg_shared_now(log, &now))
        die("no record is current", (int64_t)current, 0);
    int64_t end = now.end.next_offset + more;
    int which = (int)(current >> 8 & 0xff) == seat ? !(current & 1) : 0;
    for (size_t i = 0; i < sizeof next / 8; i++)
        ((int64_t *)&next)[i] = end;
    next.leader_epoch = epoch < 0 ? now.leader_epoch : epoch;
    for (size_t i = 0; i < sizeof next / 8; i++)
        __atomic_store_n((int64_t *)(log->ends + 2 * seat + which) + i, ((int64_t *)&next)[i], __ATOMIC_RELEASE);
    return ((current >> 16) + 1) << 16 | (uint64_t)seat << 8 | (uint64_t)which;
}

static void swap(seg_shared_log *log, uint64_t word)
{
    uint64_t current = __atomic_load_n(&log->current, __ATOMIC_RELAXED);
    if (!__atomic_compare_exchange_n(&log->current, &current, word, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        die("another one has swapped", 0, 0);
}

static void *run_member(void *arg)
{
    int seat = (int)(intptr_t)arg;
    for (int64_t i = 0; i < times; i++) {
        int number = (int)((i + seat) % LOGS);
        pthread_mutex_lock(locks + number);
        swap(log_of(number), fill(log_of(number), seat, 1, -1));
        pthread_mutex_unlock(locks + number);
        if (seg_shared_count(ends_map(), sizeof ends, (uint8_t *)file) < 0)
            die("no count", 0, 0);
    }
    __atomic_fetch_sub(&running, 1, __ATOMIC_RELEASE);
    return NULL;
}

static void pause_sometimes(int64_t i, int step)
{
    struct timespec moment = {0, 200000};
    if (i % PAUSE_EACH == step)
        nanosleep(&moment, NULL);
}

/* Begin or end a swap: the number comes first and goes last, but every other time it lies within the odd sequence. */
static void decide(uint64_t *sequence, int64_t i, int64_t number)
{
    int64_t *together = &((seg_shared_header *)file)->together;
    int is_within = (number != 0) == (i % 2 != 0);
    if (is_within)
        __atomic_fetch_add(sequence, 1, __ATOMIC_ACQ_REL);
    pause_sometimes(i, number ? 0 : 3);
    __atomic_store_n(together, number, __ATOMIC_RELEASE);
    if (!is_within)
        __atomic_fetch_add(sequence, 1, __ATOMIC_ACQ_REL);
}

/* Move the leader epoch of logs 0 and 1 as one. */
static void *run_host(void *arg)
{
    uint64_t *sequence = (uint64_t *)ends;
    for (int64_t i = 1; i <= times / 8; i++) {
        for (int n = 0; n < 2; n++) {
            seg_shared_log *log = log_of(n);
            pthread_mutex_lock(locks + n);
            __atomic_store_n(&log->pending_of, 0, __ATOMIC_RELEASE);
            __atomic_store_n(&log->pending, fill(log, HOST, 1, i), __ATOMIC_RELEASE);
            __atomic_store_n(&log->pending_of, i, __ATOMIC_RELEASE);
        }
        decide(sequence, i, i);
        for (int n = 0; n < 2; n++) {
            pause_sometimes(i, 1 + n);
            swap(log_of(n), log_of(n)->pending);
        }
        decide(sequence, i, 0);
        __atomic_fetch_add((uint32_t *)ends + 2, 1, __ATOMIC_RELEASE);
        for (int n = 0; n < 2; n++)
            pthread_mutex_unlock(locks + n);
        seg_wake(ends_map(), sizeof ends);
    }
    __atomic_fetch_sub(&running, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* Look at one log's values, which must be of one record, and not behind what was seen of it. */
static void check(const int64_t *values, int64_t *last, int64_t *last_epoch)
{
    int64_t end = values[2];
    if (values[1] != end || values[3] != end || values[4] != end || values[6] != end)
        die("a look is of two records", values[1], end);
    if (end < *last || values[7] < *last_epoch)
        die("an end went back", *last, end);
    *last = end;
    *last_epoch = values[7];
}

static void *run_reader(void *arg)
{
    int64_t slots[LOGS] = {0, 1, 2}, values[LOGS * 8], last[LOGS] = {0}, epochs[LOGS] = {0}, seen = 0, at_once = 0;
    while (__atomic_load_n(&running, __ATOMIC_ACQUIRE)) {
        int64_t code = seg_snapshot(ends_map(), sizeof ends, &shared, slots, values, LOGS, SPINS);
        if (code == LOGS) {
            for (int n = 0; n < LOGS; n++)
                check(values + 8 * n, last + n, epochs + n);
            if (epochs[0] != epochs[1])
                die("of two ends that are swapped as one, one was seen", epochs[0], epochs[1]);
            at_once++;
        }
        /* One log after the other: who has seen one new epoch sees no older one behind it. */
        for (int n = 0; n < 2; n++) {
            if (seg_snapshot(ends_map(), sizeof ends, &shared, slots + n, values, 1, 0) != 1)
                die("a look at one log must wait", n, 0);
            check(values, last + n, epochs + n);
        }
        if (epochs[1] < epochs[0])
            die("an epoch that was seen in one log was not yet seen in the other", epochs[0], epochs[1]);
        seen++;
    }
    __atomic_fetch_add(&looks, seen, __ATOMIC_RELAXED);
    __atomic_fetch_add(&together_looks, at_once, __ATOMIC_RELAXED);
    return NULL;
}

/* Follow all logs until each one's last end was seen; whoever misses a wake waits for ever. */
static void *run_tailer(void *arg)
{
    seg_tailed tailed[LOGS] = {{.slot = 0}, {.slot = 1}, {.slot = 2}};
    seg_tailer f = {ends_map(), sizeof ends, tailed, LOGS, SPINS, NULL, 0, &shared};
    int64_t last[LOGS] = {1, 1, 1}, woken = 0, most = times * MEMBERS + times / 8 * 2 + LOGS;
    for (int64_t sum = LOGS; sum < most;) {
        int64_t i = seg_await_ends(&f, nudges, 60000000000);
        if (i == LOGS || i == -EAGAIN)
            continue; /* a count that is late, since its thread had no processor */
        if (i < 0)
            die("a tailer was not woken", i, sum);
        int64_t end = tailed[i].words[SEG_TAILED_END];
        if (end < last[i] || tailed[i].words[SEG_TAILED_STABLE] != end)
            die("a tailer saw an end go back", last[i], end);
        sum += end - last[i];
        last[i] = end;
        woken++;
    }
    __atomic_fetch_add(&wakes, woken, __ATOMIC_RELAXED);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[MEMBERS + 1 + READERS + 1];
    int n = 0;
    times = argc > 2 ? atoll(argv[2]) : 1000;
    ((seg_shared_header *)file)->live = 1;
    for (int i = 0; i < LOGS; i++) {
        int64_t slot = i, values[8] = {KEY + i, 0, 0, 0, 0, 0, 0, 0};
        seg_publish(ends_map(), sizeof ends, &slot, values, 1);
        log_of(i)->key = KEY + i;
        swap(log_of(i), fill(log_of(i), 0, 1, 0));
    }
    nudges = (uint32_t)seg_nudges(ends_map(), sizeof ends, &shared);
    for (int i = 0; i < READERS; i++)
        pthread_create(threads + n++, NULL, run_reader, NULL);
    pthread_create(threads + n++, NULL, run_tailer, NULL);
    for (int i = 0; i < MEMBERS; i++)
        pthread_create(threads + n++, NULL, run_member, (void *)(intptr_t)i);
    pthread_create(threads + n++, NULL, run_host, NULL);
    while (n--)
        pthread_join(threads[n], NULL);
    if ((uint32_t)seg_nudges(ends_map(), sizeof ends, &shared) != nudges)
        die("nudges that nobody gave", nudges, seg_nudges(ends_map(), sizeof ends, &shared));
    printf("%lld %lld %lld\n", (long long)looks, (long long)together_looks, (long long)wakes);
    return 0;
}
