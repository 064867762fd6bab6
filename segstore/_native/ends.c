/* The published ends of partitions: a sequence lock in a mapping that processes share.
 *
 * map[0:8]   sequence, odd while a publication is under way
 * map[8:12]  publications so far, wrapping, for waiters
 * map[12:16] format: SEG_ENDS_UNCHECKED in old files, whose slots have no check
 * map[24:32] generation: counts changes of the partitions' slots
 * map[64:]   slots of 64 bytes, in host order: the file never leaves its machine
 *
 * A slot is 8 words: six of the partition (key, log start offset, log end offset, high
 * watermark, last stable offset, recovery point), the layout (its low 32 bits) with the
 * leader epoch (the high ones), and the check: the CRC-32C of the seven words before it
 * (low) and its complement (high). A slot of zeros is free. A writer that changes a word of a
 * slot stores the check too, within the same odd sequence. The check detects damage of the
 * file; only the sequence ensures that a copy is of one moment.
 *
 * If the store is shared, guests move the ends of shared logs without the sequence, each by one word (shared_ends.c),
 * and count that here and in the header of the shared file. The sequence is for ends that become visible together.
 *
 * Thread contract: one process writes, any number of readers in any process. A mutex lets one
 * thread publish at a time.
 * Every access is atomic. Slot stores release, so that a reader that sees one of them also
 * sees the odd sequence before it; slot loads acquire, so that the second load of
 * the sequence comes after them.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bytes.h"
#include "contract/crc.h"
#include "contract/ends.h"
#include "contract/shared_ends.h"
#include "relax.h"
#include "system.h"

enum { WORDS = SEG_ENDS_SLOT / 8, OF_PARTITION = 6, LAYOUT = 6, EPOCH = 7, CHECK = 7, GENERATION = 24 };

static int64_t check_of(const int64_t *slot)
{
    uint64_t crc = seg_crc32c(0, (const uint8_t *)slot, CHECK * 8);
    return (int64_t)(crc | (uint64_t)(uint32_t)~crc << 32);
}

static int64_t layout_of(const int64_t *values)
{
    return (int64_t)((uint64_t)(uint32_t)values[LAYOUT] | (uint64_t)(uint32_t)values[EPOCH] << 32);
}

static void pack(const int64_t *values, int64_t *slot)
{
    memcpy(slot, values, OF_PARTITION * 8);
    slot[LAYOUT] = layout_of(values);
    int64_t any = 0;
    for (int w = 0; w < CHECK; w++)
        any |= slot[w];
    slot[CHECK] = any ? check_of(slot) : 0;
}

/* The values of a slot; a damaged slot has the key SEG_ENDS_DAMAGED. */
static void unpack(const int64_t *slot, int64_t *values)
{
    int64_t any = 0;
    for (int w = 0; w < WORDS; w++)
        any |= slot[w];
    memcpy(values, slot, OF_PARTITION * 8);
    values[LAYOUT] = (uint32_t)slot[LAYOUT];
    values[EPOCH] = (int32_t)((uint64_t)slot[LAYOUT] >> 32);
    if (any && slot[CHECK] != check_of(slot))
        values[0] = SEG_ENDS_DAMAGED;
}

static int outside(const uint8_t *map, int64_t len, const int64_t *slots, int64_t n)
{
    if (((uintptr_t)map & 7) != 0 || len < SEG_ENDS_HEADER || n < 0)
        return 1;
    int64_t there = (len - SEG_ENDS_HEADER) / SEG_ENDS_SLOT;
    for (int64_t i = 0; i < n; i++)
        if (slots[i] < 0 || slots[i] >= there)
            return 1;
    return 0;
}

/* Serialises the publications of all stores of this process. A forked child has no thread that could be within one. */
static pthread_mutex_t publishing = PTHREAD_MUTEX_INITIALIZER;

static void begin_anew(void)
{
    publishing = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}

__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, begin_anew);
}

int64_t seg_store_ends(uint8_t *map, int64_t len, const int64_t *slots, const int64_t *values, int64_t n)
{
    if (outside(map, len, slots, n))
        return -EINVAL;
    uint64_t *sequence = (uint64_t *)map;
    uint32_t *publications = (uint32_t *)(map + 8);
    pthread_mutex_lock(&publishing);
    /* A writer that died within a publication left the sequence odd: continue from there. */
    uint64_t odd = __atomic_load_n(sequence, __ATOMIC_RELAXED) | 1;
    __atomic_store_n(sequence, odd, __ATOMIC_RELAXED);
    for (int64_t i = 0; i < n; i++) {
        int64_t *slot = (int64_t *)(map + SEG_ENDS_HEADER + slots[i] * SEG_ENDS_SLOT);
        int64_t packed[WORDS];
        pack(values + i * WORDS, packed);
        for (int w = 0; w < WORDS; w++)
            __atomic_store_n(slot + w, packed[w], __ATOMIC_RELEASE);
    }
    __atomic_store_n(sequence, odd + 1, __ATOMIC_RELEASE);
    __atomic_fetch_add(publications, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&publishing);
    return n;
}

int64_t seg_publish(uint8_t *map, int64_t len, const int64_t *slots, const int64_t *values, int64_t n)
{
    int64_t stored = seg_store_ends(map, len, slots, values, n);
    if (stored >= 0)
        seg_wake(map, len);
    return stored;
}

int64_t seg_await(const uint8_t *map, int64_t len, uint32_t seen, int64_t timeout_ns)
{
    if (outside(map, len, 0, 0) || timeout_ns < 0)
        return -EINVAL;
    const uint32_t *publications = (const uint32_t *)(map + 8);
    struct timespec timeout = {timeout_ns / 1000000000, timeout_ns % 1000000000};
    if (__atomic_load_n(publications, __ATOMIC_ACQUIRE) != seen)
        return 0;
    if (futex_wait(publications, seen, &timeout, SEG_OF_PROCESSES) == 0 || errno == EAGAIN)
        return 0;
    return -errno;
}

/* Counts calls of seg_rouse in this process: a wake alone may come from an earlier publication. */
static uint32_t roused;

static const seg_shared_header *header_of(const seg_shared_map *shared)
{
    return (const seg_shared_header *)shared->map;
}

/* The number of nudges, plus a constant: each publication adds two to the sequence and one to the count of
 * publications, an append to a shared log one to both counts, a nudge one to the count of publications alone. */
static uint32_t nudges_of(const uint8_t *map, const seg_shared_map *shared)
{
    uint32_t publications = __atomic_load_n((const uint32_t *)(map + 8), __ATOMIC_ACQUIRE);
    uint32_t nudges = publications - (uint32_t)(__atomic_load_n((const uint64_t *)map, __ATOMIC_ACQUIRE) >> 1);
    return shared ? nudges - __atomic_load_n(&header_of(shared)->appends, __ATOMIC_ACQUIRE) : nudges;
}

/* A publication that is under way may have moved the sequence, and not yet its count; an append to a shared log may
 * have moved one of its counts. */
static int nudged(const uint8_t *map, const seg_shared_map *shared, uint32_t nudges, int64_t spins)
{
    while (nudges_of(map, shared) != nudges) {
        if (spins-- <= 0)
            return 1;
        relax();
    }
    return 0;
}

int64_t seg_nudge(uint8_t *map, int64_t len)
{
    if (outside(map, len, 0, 0))
        return -EINVAL;
    __atomic_fetch_add((uint32_t *)(map + 8), 1, __ATOMIC_RELEASE);
    return seg_wake(map, len);
}

int64_t seg_nudges(const uint8_t *map, int64_t len, const seg_shared_map *shared)
{
    return outside(map, len, 0, 0) ? -EINVAL : (int64_t)nudges_of(map, shared);
}

/* The packed words of a slot that a tailer compares; readers see the log up to the high watermark. */
static const int TAILED[SEG_TAILED] = {0, 1, 3, 4, LAYOUT};

/* The same words of unpacked values. */
static void tailed_words(const int64_t *values, int64_t *words)
{
    for (int i = 0; i < SEG_TAILED; i++)
        words[i] = values[TAILED[i]];
    words[SEG_TAILED_LAYOUT_AND_EPOCH] = layout_of(values);
}

/* Replace a slot's values by those of the shared log with its number, `slot`. */
static int is_shared(const seg_shared_map *shared, int64_t slot, int64_t key, int64_t *values)
{
    values[0] = key;
    return (int)seg_shared_ends(shared->map, shared->len, slot, values);
}

/* The words may be of two moments: then a publication is under way, and its count will change. */
static int differs(const seg_tailer *tailer, const seg_tailed *f)
{
    const int64_t *slot = (const int64_t *)(tailer->map + SEG_ENDS_HEADER + f->slot * SEG_ENDS_SLOT);
    if (tailer->shared) {
        int64_t values[WORDS], words[SEG_TAILED];
        if (is_shared(tailer->shared, f->slot, __atomic_load_n(slot, __ATOMIC_ACQUIRE), values)) {
            tailed_words(values, words);
            return memcmp(words, f->words, sizeof words) != 0;
        }
    }
    for (int i = 0; i < SEG_TAILED; i++)
        if (__atomic_load_n(slot + TAILED[i], __ATOMIC_ACQUIRE) != f->words[i])
            return 1;
    return 0;
}

int64_t seg_read_tailed(const uint8_t *map, int64_t len, const seg_shared_map *shared, seg_tailed *f, int64_t spins)
{
    int64_t values[WORDS];
    int64_t code = seg_snapshot(map, len, shared, &f->slot, values, 1, spins);
    if (code < 0)
        return code;
    if (values[0] == SEG_ENDS_DAMAGED)
        return 0;
    tailed_words(values, f->words);
    return 1;
}

/* Whether a wait for these slots is possible. */
static int is_within(const seg_tailer *f)
{
    if (outside(f->map, f->len, 0, 0) || f->n < 0 || f->turn < 0)
        return 0;
    for (int64_t i = 0; i < f->n; i++)
        if (outside(f->map, f->len, &f->tailed[i].slot, 1))
            return 0;
    return 1;
}

static struct timespec from_now(int64_t ns)
{
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += ns / 1000000000;
    end.tv_nsec += ns % 1000000000;
    if (end.tv_nsec >= 1000000000) {
        end.tv_sec++;
        end.tv_nsec -= 1000000000;
    }
    return end;
}

/* The next partition in turn with changed ends, or -1. */
static int64_t next_changed(seg_tailer *f)
{
    for (int64_t k = 0; k < f->n; k++) {
        int64_t i = f->turn < f->n ? f->turn : 0;
        f->turn = i + 1;
        if (differs(f, f->tailed + i))
            return i;
    }
    return -1;
}

int64_t seg_await_ends(seg_tailer *f, uint32_t nudges, int64_t timeout_ns)
{
    if (timeout_ns < 0 || !is_within(f))
        return -EINVAL;
    const uint32_t *publications = (const uint32_t *)(f->map + 8);
    uint32_t before = __atomic_load_n(&roused, __ATOMIC_ACQUIRE);
    struct timespec end = from_now(timeout_ns);
    for (;;) {
        /* The count first: any later publication changes it. */
        uint32_t seen = __atomic_load_n(publications, __ATOMIC_ACQUIRE);
        if (nudged(f->map, f->shared, nudges, f->spins) || __atomic_load_n(&roused, __ATOMIC_ACQUIRE) != before)
            return f->n;
        int64_t i = next_changed(f);
        if (i >= 0)
            return seg_read_tailed(f->map, f->len, f->shared, f->tailed + i, f->spins) == 1 ? i : -EAGAIN;
        if (timeout_ns == 0)
            return -ETIMEDOUT;
        /* An absolute time, so that other publications don't prolong the wait. */
        if (futex_wait_until(publications, seen, &end, SEG_OF_PROCESSES) && errno != EAGAIN)
            return -errno;
    }
}

int64_t seg_wake(const uint8_t *map, int64_t len)
{
    if (outside(map, len, 0, 0))
        return -EINVAL;
    const uint32_t *publications = (const uint32_t *)(map + 8);
    int64_t woken = futex_wake(publications, INT_MAX, SEG_OF_PROCESSES);
    return woken < 0 ? -errno : woken;
}

int64_t seg_rouse(const uint8_t *map, int64_t len)
{
    __atomic_fetch_add(&roused, 1, __ATOMIC_RELEASE);
    return seg_wake(map, len);
}

/* Two equal moments: nothing was published as one between them. */
typedef struct moment {
    uint64_t sequence;
    int64_t together;
} moment;

static moment moment_of(const uint8_t *map, const seg_shared_map *shared)
{
    uint64_t sequence = __atomic_load_n((const uint64_t *)map, __ATOMIC_ACQUIRE);
    return (moment){sequence, shared ? __atomic_load_n(&header_of(shared)->together, __ATOMIC_ACQUIRE) : 0};
}

static void copy_slots(const uint8_t *map, const int64_t *slots, int64_t *values, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const int64_t *slot = (const int64_t *)(map + SEG_ENDS_HEADER + slots[i] * SEG_ENDS_SLOT);
        for (int w = 0; w < WORDS; w++)
            values[i * WORDS + w] = __atomic_load_n(slot + w, __ATOMIC_ACQUIRE);
    }
}

static void unpack_in_place(int64_t *values)
{
    int64_t slot[WORDS];
    memcpy(slot, values, SEG_ENDS_SLOT);
    unpack(slot, values);
}

/* Replace the slots of shared logs by their logs' ends, and unpack the others; returns the number of logs. */
static int64_t look_at_logs(const seg_shared_map *shared, const int64_t *slots, int64_t *values, int64_t n, int checked)
{
    int64_t of_logs = 0;
    for (int64_t i = 0; i < n; i++) {
        if (seg_shared_ends(shared->map, shared->len, slots[i], values + i * WORDS))
            of_logs++;
        else if (checked)
            unpack_in_place(values + i * WORDS);
    }
    return of_logs;
}

int64_t seg_snapshot(const uint8_t *map, int64_t len, const seg_shared_map *shared, const int64_t *slots,
                     int64_t *values, int64_t n, int64_t spins)
{
    if (outside(map, len, slots, n))
        return -EINVAL;
    const uint32_t *format = (const uint32_t *)(map + 12);
    do {
        moment before = moment_of(map, shared);
        int is_odd = before.sequence & 1;
        if (shared || !is_odd) {
            copy_slots(map, slots, values, n);
            int checked = __atomic_load_n(format, __ATOMIC_ACQUIRE) != SEG_ENDS_UNCHECKED;
            int64_t of_logs = shared ? look_at_logs(shared, slots, values, n, checked) : 0;
            moment after = moment_of(map, shared);
            int is_one = after.sequence == before.sequence && after.together == before.together;
            for (int64_t i = 0; !shared && is_one && checked && i < n; i++)
                unpack_in_place(values + i * WORDS);
            /* One log is always of one moment. Several logs are while a decided swap is under way: then the next ends
             * count. Within an odd sequence the same number must stand before and after. */
            int is_decided = before.together && of_logs == n;
            if ((is_one && (!is_odd || is_decided)) || (n == 1 && of_logs == 1))
                return n;
        }
        relax();
    } while (spins-- > 0);
    return -EAGAIN;
}

int32_t seg_unchanged(const seg_seen *seen)
{
    if (outside(seen->map, seen->len, &seen->slot, 1))
        return 0;
    const uint64_t *sequence = (const uint64_t *)seen->map;
    const int64_t *slot = (const int64_t *)(seen->map + SEG_ENDS_HEADER + seen->slot * SEG_ENDS_SLOT);
    int64_t packed[WORDS], generation = __atomic_load_n((const int64_t *)(seen->map + GENERATION), __ATOMIC_ACQUIRE);
    if (seen->shared && is_shared(seen->shared, seen->slot, seen->values[0], packed))
        return generation == seen->generation && memcmp(packed, seen->values, sizeof packed) == 0;
    uint64_t before = __atomic_load_n(sequence, __ATOMIC_ACQUIRE);
    pack(seen->values, packed);
    int same = (before & 1) == 0 && generation == seen->generation;
    for (int w = 0; w < WORDS; w++)
        same &= __atomic_load_n(slot + w, __ATOMIC_ACQUIRE) == packed[w];
    return same && __atomic_load_n(sequence, __ATOMIC_RELAXED) == before;
}
